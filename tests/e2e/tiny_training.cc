#include "tests/e2e/tiny_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

namespace terrace {
namespace {

namespace fs = std::filesystem;

// Returns the text of a column's value, exactly as it is in the line.
std::string value_text(const std::string& line, const std::string& column) {
  const std::string key = "\"" + column + "\":";
  const std::size_t at = line.find(key);
  if (at == std::string::npos) return "(absent)";
  const std::size_t begin = at + key.size();
  return line.substr(begin, line.find_first_of(",}", begin) - begin);
}

MetricsRow row_of(const std::string& line) {
  MetricsRow row;
  const auto object = nlohmann::json::parse(line, nullptr, false);
  EXPECT_TRUE(object.is_object()) << line;
  if (!object.is_object()) return row;
  row.step = object.value("step", std::int64_t{-1});
  row.bits = value_text(line, "loss") + " " + value_text(line, "grad_norm");
  for (const auto& [name, value] : object.items()) {
    if (value.is_number()) row.columns[name] = value.get<double>();
  }
  return row;
}

}  // namespace

Arguments operator+(Arguments left, const Arguments& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

std::string llama_config(int layers, int width, bool tied) {
  const nlohmann::json config = {
      {"model_type", "llama"},         {"architectures", {"LlamaForCausalLM"}},
      {"hidden_size", width},          {"intermediate_size", 2 * width},
      {"num_hidden_layers", layers},   {"num_attention_heads", 4},
      {"num_key_value_heads", 2},      {"vocab_size", 256},
      {"max_position_embeddings", 32}, {"tie_word_embeddings", tied}};
  return config.dump(2);
}

std::string gpt2_config() {
  const nlohmann::json config = {{"model_type", "gpt2"}, {"architectures", {"GPT2LMHeadModel"}},
                                 {"n_embd", 32},         {"n_layer", 3},
                                 {"n_head", 2},          {"n_positions", 32},
                                 {"vocab_size", 256}};
  return config.dump(2);
}

std::string small_tokenizer() {
  nlohmann::json vocabulary;
  for (const char letter : std::string("abcdefghijklmnopqrstuvwxyz ?.\n")) {
    vocabulary[std::string(1, letter)] = vocabulary.size();
  }
  vocabulary["re"] = vocabulary.size();
  vocabulary["red"] = vocabulary.size();
  return nlohmann::json{{"version", "1.0"},
                        {"truncation", nullptr},
                        {"padding", nullptr},
                        {"added_tokens", nlohmann::json::array()},
                        {"normalizer", nullptr},
                        {"pre_tokenizer", nullptr},
                        {"post_processor", nullptr},
                        {"decoder", {{"type", "Fuse"}}},
                        {"model",
                         {{"type", "BPE"},
                          {"vocab", vocabulary},
                          {"merges", nlohmann::json::array({"r e", "re d"})}}}}
      .dump();
}

std::string generated_text(std::size_t bytes, std::uint64_t seed) {
  constexpr const char* kWords[] = {"the ", "tide ", "turns ", "over ",  "a ",      "field ",
                                    "of ",  "rye ",  "and ",   "barley", ". Then ", "\n"};
  std::mt19937_64 random(seed);
  std::string text;
  while (text.size() < bytes) text += kWords[random() % std::size(kWords)];
  text.resize(bytes);
  return text;
}

std::ostream& operator<<(std::ostream& out, const MetricsRow& row) {
  return out << "step " << row.step << ": " << row.bits;
}

void expect_near(const std::vector<MetricsRow>& rows, const std::vector<MetricsRow>& expected,
                 double relative) {
  ASSERT_EQ(rows.size(), expected.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (const char* column : {"loss", "grad_norm"}) {
      const double value = expected[i].columns.at(column);
      EXPECT_NEAR(rows[i].columns.at(column), value, relative * std::fabs(value)) << rows[i];
    }
    EXPECT_EQ(rows[i].columns.at("tokens"), expected[i].columns.at("tokens"));
  }
}

double sum_of(const std::vector<MetricsRow>& rows, const std::string& column) {
  double sum = 0;
  for (const MetricsRow& row : rows) {
    const auto found = row.columns.find(column);
    EXPECT_NE(found, row.columns.end()) << "no column " << column;
    if (found != row.columns.end()) sum += found->second;
  }
  return sum;
}

TinyTraining::TinyTraining(int layers, int width) : TinyTraining(llama_config(layers, width)) {}

TinyTraining::TinyTraining(const std::string& config_json) {
  directory_.write("model/config.json", config_json);
  directory_.write("text.txt", generated_text(20'000, 7));
  directory_.write("common.toml", fmt::format("model = \"{}\"\n"
                                              "init = \"random\"\n"
                                              "data = [\"{}\"]\n"
                                              "gradient_accumulation_steps = 2\n"
                                              "learning_rate = 3e-3\n"
                                              "device = \"cpu\"\n"
                                              "host_memory = \"64MiB\"\n",
                                              path("model"), path("text.txt")));
  fs::create_directory(path("nvme"));
}

Arguments TinyTraining::command(const std::string& run, const Arguments& more) const {
  return Arguments{"train", "--config", path("common.toml"), "--run-dir", path(run)} + more;
}

bool TinyTraining::nvme_is_empty() const { return fs::is_empty(path("nvme")); }

int TinyTraining::last_committed(const std::string& run) const {
  int last = 0;
  std::error_code not_there;  // the run has not made it yet
  for (const auto& entry : fs::directory_iterator(path(run), not_there)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("checkpoint-") || name.ends_with(".writing")) continue;
    if (fs::exists(entry.path() / "manifest.json"))
      last = std::max(last, std::stoi(name.substr(11)));
  }
  return last;
}

std::string TinyTraining::least_device_memory(const Arguments& more) const {
  const Outcome refused = run_program(command(
      "unused", more + Arguments{"--max-steps", "1", "--device-memory", "4KiB", "--dry-run"}));
  EXPECT_EQ(refused.code, 3) << refused;
  const std::string before = "raise --device-memory to ";
  const std::size_t at = refused.errors.find(before);
  EXPECT_NE(at, std::string::npos) << refused;
  if (at == std::string::npos) return "1GiB";
  const std::size_t begin = at + before.size();
  std::string size = refused.errors.substr(begin, refused.errors.find(" or more", begin) - begin);
  std::erase(size, ' ');
  return size;
}

Outcome TinyTraining::train(const std::string& run, const Arguments& more) const {
  Outcome outcome = run_program(command(run, more));
  EXPECT_EQ(outcome.code, 0) << fmt::format("{}", fmt::join(more, " ")) << '\n' << outcome;
  return outcome;
}

std::vector<MetricsRow> TinyTraining::rows(const std::string& run) const {
  std::istringstream text(directory_.read(run + "/metrics.jsonl"));
  std::vector<MetricsRow> rows;
  for (std::string line; std::getline(text, line);) rows.push_back(row_of(line));
  return rows;
}

std::map<std::string, std::string> TinyTraining::files(const std::string& run,
                                                       const std::string& name) const {
  std::map<std::string, std::string> files;
  const fs::path directory = fs::path(path(run)) / name;
  EXPECT_TRUE(fs::is_directory(directory)) << directory;
  if (!fs::is_directory(directory)) return files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string file = entry.path().filename().string();
    files[file] = directory_.read(run + "/" + name + "/" + file);
  }
  return files;
}

void TinyTraining::expect_same(const std::string& run, const std::string& reference,
                               const std::string& name) const {
  EXPECT_EQ(rows(run), rows(reference));
  const auto expected = files(reference, name);
  const auto actual = files(run, name);
  EXPECT_EQ(actual.size(), expected.size());
  EXPECT_FALSE(expected.empty());
  for (const auto& [file, content] : expected) {
    const auto found = actual.find(file);
    ASSERT_NE(found, actual.end()) << name << "/" << file;
    EXPECT_TRUE(found->second == content) << name << "/" << file << " has other bytes";
  }
}

}  // namespace terrace
