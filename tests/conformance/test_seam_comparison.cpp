// SPDX-License-Identifier: MIT
//
// The comparer of the kit: what must fail does, what is legitimate passes. test_compare.py says the same of compare.py.
#include <cmath>
#include <cstring>
#include <limits>
#include <list>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/seam_comparison.hpp"
#include "support/temp_folder.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

/// Four tokens, one layer of ratio 2, three experts, a vocabulary of three.
class SmallCase {
 public:
  explicit SmallCase(double excluded = 0.6) {
    put<std::int64_t>("prompt.tokens", {4}, {0, 1, 2, 0});
    put<std::int64_t>("schedule.ratios", {1}, {2});
    put<double>("limits.module", {1}, {1e-5});
    put<double>("limits.logits", {1}, {1e-4});
    put<double>("limits.decision", {1}, {2e-5});
    put<double>("limits.excluded", {1}, {excluded});
    const double inf = HUGE_VAL;
    put<float>("layers.0.attn.entries", {2, 2}, {1, 2, 3, 4});  // steps of 1; the last was nearly 3.5
    put<double>("judge.layers.0.attn.entries", {2, 2}, {1.2, 2, 3, 3.50001});
    put<std::uint8_t>("layers.0.attn.chosen", {4, 2}, {0, 0, 1, 0, 1, 0, 0, 1});
    put<double>("judge.layers.0.attn.chosen", {4, 2}, {-inf, -inf, 1, -inf, 1, -inf, 1, 1.00001});
    put<std::int64_t>("layers.0.ffn.expert_ids", {4, 2}, {0, 1, 1, 2, 2, 0, 0, 1});
    put<double>("judge.layers.0.ffn.expert_ids", {4, 3},
                {3, 2, 1, 1, 3, 2, 2, 1, 3, 3, 2, 2});  // an exact tie in the last row
    put<float>("layers.0.ffn_out", {4, 1}, {1, 2, 3, 4});
    put<float>("logits", {4, 3}, {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 2, 2});
    put<double>("judge.logits", {4, 3}, {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 2, 2});
    put<std::int64_t>("greedy", {2}, {1, 2});
    put<double>("judge.greedy", {2, 3}, {0, 2, 2, 0, 1.99999, 2});
  }

  /// The first fault when an engine gives these values instead of the expected ones.
  std::string fault(const SeamValues& instead = {}, const std::string& without = "") {
    return compare(instead, without).fault();
  }

  SeamComparison compare(const SeamValues& instead, const std::string& without = "") {
    std::vector<runtime::TensorSource> sources;
    for (const Tensor& t : tensors_)
      sources.push_back({.name = t.name, .dtype = t.dtype, .shape = t.shape, .data = t.bytes});
    runtime::write_safetensors(folder_ / "seams.safetensors", sources);
    files_.push_back(runtime::SafetensorsFile::open(folder_ / "seams.safetensors"));
    SeamValues actual = instead;
    for (const Tensor& t : tensors_) {
      if (SeamComparison::compared(t.name)) actual.emplace(t.name, t.values);
    }
    actual.erase(without);
    return SeamComparison(files_.back(), actual);
  }

 private:
  struct Tensor {
    std::string name;
    runtime::DType dtype;
    std::vector<std::int64_t> shape;
    std::vector<double> values;
    std::vector<std::byte> bytes;
  };

  template <class T>
  void put(const std::string& name, const std::vector<std::int64_t>& shape, const std::vector<double>& values) {
    using runtime::DType;
    const DType dtype = std::is_same_v<T, double>         ? DType::f64
                        : std::is_same_v<T, float>        ? DType::f32
                        : std::is_same_v<T, std::int64_t> ? DType::i64
                                                          : DType::boolean;
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const T v = static_cast<T>(values[i]);
      std::memcpy(bytes.data() + i * sizeof(T), &v, sizeof(T));
    }
    tensors_.push_back({name, dtype, shape, values, bytes});
  }

  TempFolder folder_;
  std::vector<Tensor> tensors_;
  std::list<runtime::SafetensorsFile> files_;
};

void check_says(const std::string& fault, const std::string& part) {
  INFO(fault << ", expected: " << part);
  CHECK(fault.find(part) != std::string::npos);
}

}  // namespace

TEST_CASE("the expected values conform, and small errors do") {
  SmallCase c;
  CHECK(c.fault() == "");
  CHECK(c.fault({{"layers.0.ffn_out", {1, 2, 3, 4.00001}}}) == "");
}

TEST_CASE("a value that is off, missing, not a number or unknown fails") {
  SmallCase c;
  check_says(c.fault({{"layers.0.ffn_out", {1, 2, 3, 4.001}}}), "layers.0.ffn_out is off");
  check_says(c.fault({{"logits", {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 2.01, 2}}}), "logits is off");
  CHECK(c.fault({}, "layers.0.ffn_out") == "layers.0.ffn_out is missing");
  CHECK(c.fault({{"layers.0.ffn_out", {1, 2, 3, std::numeric_limits<double>::quiet_NaN()}}}) ==
        "layers.0.ffn_out holds NaN");
  check_says(c.fault({{"layers.0.ffn_out", {1, 2, 3, HUGE_VAL}}}), "layers.0.ffn_out is off");
  check_says(c.fault({{"layers.0.ffn_out", {1, 2, 3}}}), "expected 4");
  CHECK(c.fault({{"layers.0.fnn_out", {1}}}) == "layers.0.fnn_out is no seam of this case");
}

TEST_CASE("a wrong decision fails, however right its values are") {
  SmallCase c;
  check_says(c.fault({{"layers.0.ffn.expert_ids", {1, 0, 1, 2, 2, 0, 0, 1}}}), "expert_ids decides wrongly");
  check_says(c.fault({{"layers.0.ffn.expert_ids", {0, 0, 1, 2, 2, 0, 0, 1}}}), "expert_ids decides wrongly");
  check_says(c.fault({{"layers.0.ffn.expert_ids", {0, 7, 1, 2, 2, 0, 0, 1}}}), "expert_ids decides wrongly");
  check_says(c.fault({{"layers.0.attn.chosen", {0, 0, 1, 0, 0, 1, 0, 1}}}), "chosen decides wrongly");  // invisible
  check_says(c.fault({{"layers.0.attn.chosen", {0, 0, 1, 0, 1, 0, 1, 1}}}), "chosen decides wrongly");  // one more
  check_says(c.fault({{"greedy", {0, 2}}}), "greedy differs at token 0");
}

TEST_CASE("of exactly equal scores the lower index is the only right one") {
  SmallCase c;
  check_says(c.fault({{"layers.0.ffn.expert_ids", {0, 1, 1, 2, 2, 0, 0, 2}}}), "expert_ids decides wrongly");
  check_says(c.fault({{"logits", {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 2, 2.00001}}}), "largest value elsewhere at row 3");
  check_says(c.fault({{"greedy", {2, 2}}}), "greedy differs at token 0");
}

TEST_CASE("a near-tie may go the other way; what lies behind it is not compared, and is counted") {
  SmallCase c;
  const std::vector<double> other = {0, 0, 1, 0, 1, 0, 1, 0};
  const SeamComparison result =
      c.compare({{"layers.0.attn.chosen", other}, {"layers.0.ffn_out", {1, 2, 3, 9}}, {"greedy", {0, 0}}});
  CHECK(result.fault() == "");
  CHECK(result.seam("layers.0.attn.chosen").near_ties == 1);
  CHECK(result.seam("layers.0.ffn_out").excluded == 1);
  CHECK(result.excluded_share > 0);
  // Rows before it are compared still.
  check_says(c.fault({{"layers.0.attn.chosen", other}, {"layers.0.ffn_out", {1, 2, 9, 4}}}), "ffn_out is off");
}

TEST_CASE("a greedy token may be a near-tie; the text behind it is another") {
  SmallCase c;
  CHECK(c.fault({{"greedy", {1, 1}}}) == "");
  check_says(c.fault({{"greedy", {1, 0}}}), "greedy differs at token 1");
}

TEST_CASE("a code may be rounded the other way where it lay between two; a code that is only near may not") {
  SmallCase c;
  const SeamComparison result =
      c.compare({{"layers.0.attn.entries", {1, 2, 3, 3}}, {"layers.0.ffn_out", {1, 2, 3, 9}}});
  CHECK(result.fault() == "");
  CHECK(result.seam("layers.0.attn.entries").near_ties == 1);
  CHECK(result.seam("layers.0.ffn_out").excluded == 1);  // the group's last token sees it first
  check_says(c.fault({{"layers.0.attn.entries", {2, 2, 3, 4}}}), "entries is off");
}

TEST_CASE("near-ties do not excuse everything") {
  SmallCase c;
  check_says(c.fault({{"layers.0.attn.entries", {1, 2, 3, 3}}, {"layers.0.attn.chosen", {0, 0, 0, 1, 1, 0, 0, 1}}}),
             "chosen decides wrongly");
  SmallCase strict(0.2);
  check_says(strict.fault({{"layers.0.attn.chosen", {0, 0, 1, 0, 1, 0, 1, 0}}, {"greedy", {0, 0}}}),
             "too many rows behind near-ties");
}
