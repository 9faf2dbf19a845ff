#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/e2e/program_run.h"
#include "tests/runtime/temporary_directory.h"

// A training run that is small enough for a step to take a millisecond, and the data that tests
// want from it.
namespace terrace {

using Arguments = std::vector<std::string>;

Arguments operator+(Arguments left, const Arguments& right);

// Returns a Hugging Face config.json of a Llama of these sizes, with bytes as tokens.
std::string llama_config(int layers, int width, bool tied = true);
// Returns the same of a GPT-2, with 3 layers of width 32.
std::string gpt2_config();
// Returns a tokenizer.json of lower case letters, space, question mark, dot, end of line and two
// merges.
std::string small_tokenizer();
// Returns words of a small vocabulary in an order that comes from the seed.
std::string generated_text(std::size_t bytes, std::uint64_t seed);

// A row of metrics.jsonl. Values are compared as the text in the file.
struct MetricsRow {
  std::int64_t step = 0;
  std::string bits;                       // the columns loss and grad_norm, as they stand
  std::map<std::string, double> columns;  // all that are numbers

  bool operator==(const MetricsRow& other) const {
    return step == other.step && bits == other.bits;
  }
};
std::ostream& operator<<(std::ostream& out, const MetricsRow& row);

// Returns the sum of a column over the rows. The column must be there.
double sum_of(const std::vector<MetricsRow>& rows, const std::string& column);

// Expects the loss and gradient norm of each row to be within a relative distance, and the number
// of tokens to be the same.
void expect_near(const std::vector<MetricsRow>& rows, const std::vector<MetricsRow>& expected,
                 double relative);

// A directory with a model, a text, an empty directory for --nvme, and run directories by name.
class TinyTraining {
 public:
  explicit TinyTraining(int layers = 2, int width = 32);
  explicit TinyTraining(const std::string& config_json);

  std::string path(const std::string& name = "") const { return directory_.path(name); }
  const TemporaryDirectory& directory() const { return directory_; }

  // Returns `train` of the model on the text into run directory `run`, with two micro-batches a
  // step unless `more` says otherwise.
  Arguments command(const std::string& run, const Arguments& more = {}) const;
  // Returns --nvme with the directory for it.
  Arguments nvme() const { return {"--nvme", path("nvme")}; }
  bool nvme_is_empty() const;
  // Returns the smallest --device-memory that the program names for these arguments, which are
  // without a number of steps.
  std::string least_device_memory(const Arguments& more) const;

  // Runs the command and expects exit code 0.
  Outcome train(const std::string& run, const Arguments& more = {}) const;
  std::vector<MetricsRow> rows(const std::string& run) const;
  // Returns the step of the run's last complete checkpoint; 0 if there is none.
  int last_committed(const std::string& run) const;
  // Returns the content of a run's files in a directory of it, such as "final" or "checkpoint-10",
  // by name.
  std::map<std::string, std::string> files(const std::string& run, const std::string& name) const;
  // Expects a run to have written the same rows and the same files in `name` as another one.
  void expect_same(const std::string& run, const std::string& reference,
                   const std::string& name) const;

 private:
  TemporaryDirectory directory_;
};

}  // namespace terrace
