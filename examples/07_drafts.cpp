// SPDX-License-Identifier: MIT
//
// What became of drafts, drawn from traces of generate --trace: 07_drafts TRACE.json... > drafts.svg. Above: the share of verified k-th
// drafts that were accepted, and dashed what their confidences promised, the mean product of the first k. Below: drafts verified per
// request, by how many requests decode together. The numbers go to standard error. Without arguments it decodes four requests of the demo
// checkpoint that join one after another, with made-up costs of steps, so that the chart is the same on every machine.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dsv41/core/error.hpp"
#include "dsv41/runtime/generator.hpp"
#include "generate/command_line.hpp"
#include "generate/files.hpp"
#include "generate/terminal.hpp"
#include "plot/draft_trace.hpp"
#include "plot/svg.hpp"

namespace {

using namespace dsv41::runtime;
using dsv41::plot::Chart;
using dsv41::plot::DraftTrace;

/// Of all k-th drafts of a trace.
struct Position {
  std::int64_t verified = 0;
  std::int64_t accepted = 0;  ///< with all before them
  std::int64_t reached = 0;   ///< verified, and all before them accepted: what their confidences speak of
  double promised = 0;        ///< sum over the verified of products of confidences
  double confidence = 0;      ///< sum over the reached
};

/// Of all steps with so many requests.
struct Load {
  std::int64_t steps = 0, rounds = 0, verified = 0;
};

struct Tally {
  std::string name;
  std::vector<Position> positions;  ///< [draft]
  std::map<std::int64_t, Load> loads;
};

/// Errors: format for a trace in which nothing decoded.
Tally tally(const std::string& name, const DraftTrace& trace) {
  Tally out{.name = name + ", " + dsv41::plot::policy_text(trace.policy())};
  out.positions.resize(static_cast<std::size_t>(trace.draft()));
  for (const DraftTrace::Step& step : trace.steps()) {
    if (step.rounds.empty()) continue;
    Load& load = out.loads[std::ssize(step.rounds)];
    ++load.steps;
    for (const DraftTrace::Round& round : step.rounds) {
      ++load.rounds;
      load.verified += round.verified;
      double survival = 1;
      for (std::int32_t k = 0; k < round.verified; ++k) {
        const auto confidence = static_cast<double>(round.confidences[static_cast<std::size_t>(k)]);
        survival *= confidence;  // a draft without one makes the sums NaN, and charts leave those out
        Position& at = out.positions[static_cast<std::size_t>(k)];
        ++at.verified;
        at.promised += survival;
        if (k > round.accepted) continue;
        ++at.reached;
        at.confidence += confidence;
        at.accepted += k < round.accepted ? 1 : 0;
      }
    }
  }
  if (out.loads.empty()) throw dsv41::Error(dsv41::Errc::format, name + ": has no step in which a request decoded");
  return out;
}

double mean(double sum, std::int64_t count) {
  return sum / static_cast<double>(count);
}

void print(const Tally& t) {
  std::fprintf(stderr, "%s\ndraft  verified  accepted  promised  reached  accepted  confidence\n", t.name.c_str());
  for (std::size_t k = 0; k < t.positions.size() && t.positions[k].verified > 0; ++k) {
    const Position& p = t.positions[k];
    std::fprintf(stderr, "%5zu  %8lld  %8.3f  %8.3f  %7lld", k + 1, static_cast<long long>(p.verified),
                 mean(static_cast<double>(p.accepted), p.verified), mean(p.promised, p.verified),
                 static_cast<long long>(p.reached));
    if (p.reached > 0) {
      std::fprintf(stderr, "  %8.3f  %10.3f", mean(static_cast<double>(p.accepted), p.reached),
                   mean(p.confidence, p.reached));
    }
    std::fprintf(stderr, "\n");
  }
  std::fprintf(stderr, "requests  steps  verified by each\n");
  for (const auto& [requests, load] : t.loads) {
    std::fprintf(stderr, "%8lld  %5lld  %16.3f\n", static_cast<long long>(requests), static_cast<long long>(load.steps),
                 mean(static_cast<double>(load.verified), load.rounds));
  }
}

std::string drawn(const std::vector<Tally>& tallies) {
  Chart panels[] = {
      {.title = "Verified drafts that were accepted, and what confidences promised (dashed)", .counts = true},
      {.title = "Verified drafts by load", .counts = true}};
  panels[0].x_label = "k-th draft", panels[0].y_label = "share of verified";
  panels[1].x_label = "requests decoding together", panels[1].y_label = "drafts verified per request";
  for (const Tally& t : tallies) {
    dsv41::plot::Series accepted{.label = t.name}, promised{.label = "promised", .dashed = true}, load{.label = t.name};
    for (std::size_t k = 0; k < t.positions.size(); ++k) {
      const Position& p = t.positions[k];
      accepted.x.push_back(static_cast<double>(k + 1)), promised.x.push_back(static_cast<double>(k + 1));
      accepted.y.push_back(mean(static_cast<double>(p.accepted), p.verified));  // none verified: NaN, left out
      promised.y.push_back(mean(p.promised, p.verified));
    }
    for (const auto& [requests, l] : t.loads) {
      load.x.push_back(static_cast<double>(requests));
      load.y.push_back(mean(static_cast<double>(l.verified), l.rounds));
    }
    panels[0].series.push_back(std::move(accepted));
    panels[0].series.push_back(std::move(promised));
    panels[1].series.push_back(std::move(load));
  }
  return dsv41::plot::svg(panels);
}

/// A step of up to four rows costs about the same, each further one a tenth of that.
DraftTrace demo() {
  const ModelFolder folder = ModelFolder::open(DSV41_DEMO_DIR);
  const std::int64_t draft = folder.checkpoint.config().draft.block;
  Engine engine(folder, {.max_context = 256, .draft = draft});
  GeneratorOptions options{.policy = {.kind = dsv41::DraftPolicy::Kind::delayed}};
  options.costs.emplace(std::vector<dsv41::CostPoint>{{1, 10}, {4, 10.5}, {24, 30.5}}, 0,
                        std::vector<dsv41::CostPoint>{{1, 1}, {4, 1.5}});
  options.choices = folder.tokenizer->vocab_size();
  Generator generator(engine, options);
  DraftTrace trace(draft, options.policy);
  const char* const prompts[] = {"And the LORD said unto", "In the beginning", "Then came the king", "Blessed be"};
  std::size_t joined = 0;
  for (int step = 0; joined < std::size(prompts) || generator.active() > 0; ++step) {
    if (step % 8 == 0 && joined < std::size(prompts)) {
      const RequestOptions request{.sampler = {.temperature = 0.7, .seed = joined}, .max_tokens = 64};
      generator.add(engine.open_session(), request, folder.tokenizer->encode(prompts[joined++]));
    }
    generator.step();
    trace.add(generator.last());
  }
  return trace;
}

void run(const std::vector<std::string>& paths) {
  constexpr std::size_t kMost = 6;  // colours of a chart
  if (paths.size() > kMost) generate::refuse(std::to_string(paths.size()) + " traces, expected at most 6");
  std::vector<Tally> tallies;
  for (const std::string& path : paths) {
    const std::string text = generate::read_file("trace", path);
    tallies.push_back(tally(path, DraftTrace::parse(text, path)));
  }
  if (paths.empty()) tallies.push_back(tally("demo", demo()));
  generate::write_out(drawn(tallies));
  for (const Tally& t : tallies) print(t);
}

}  // namespace

int main(int argc, char** argv) {
  return generate::main_of("07_drafts", argc, argv, run);
}
