#include "tests/golden/golden_case.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>

namespace terrace {
namespace {

using Json = nlohmann::json;

GoldenSpread read_spread(const Json& json) {
  GoldenSpread spread;
  json.at("logits").get_to(spread.logits);
  json.at("losses").get_to(spread.losses);
  json.at("gradient_norms").get_to(spread.gradient_norms);
  spread.balance_losses = json.value("balance_losses", std::vector<double>());
  json.at("gradients").get_to(spread.gradients);
  json.at("after").get_to(spread.after);
  return spread;
}

std::vector<std::string> names_in(const char* directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

GoldenCase::GoldenCase(const std::string& path)
    : directory(path), tensors_(std::make_unique<SafetensorsFile>(path + "/golden.safetensors")) {
  std::ifstream stream(path + "/golden.json");
  const Json json = Json::parse(stream);
  if (json.contains("base")) {
    adapter = path;
    directory = golden_case_directory(json.at("base").get<std::string>());
  }
  json.at("micro_batches").get_to(micro_batches);
  json.at("sequences").get_to(sequences);
  json.at("positions").get_to(positions);
  json.at("learning_rate").get_to(learning_rate);
  json.at("beta1").get_to(beta1);
  json.at("beta2").get_to(beta2);
  json.at("epsilon").get_to(epsilon);
  json.at("weight_decay").get_to(weight_decay);
  json.at("max_grad_norm").get_to(max_grad_norm);
  json.at("tokens").get_to(tokens);
  json.at("targets").get_to(targets);
  json.at("prompt").get_to(prompt);
  json.at("continuation").get_to(continuation);
  json.at("losses").get_to(losses);
  json.at("gradient_norms").get_to(gradient_norms);
  balance_losses = json.value("balance_losses", std::vector<double>());
  spread = read_spread(json.at("spread"));
}

std::vector<float> GoldenCase::tensor(const std::string& name) const {
  return read_f32(*tensors_, name);
}

std::vector<float> read_f32(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsTensor* const tensor = file.find(name);
  if (tensor == nullptr) throw std::out_of_range(file.path() + " has no " + name);
  std::vector<float> values(static_cast<std::size_t>(tensor->elements()));
  file.read(*tensor, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

std::vector<std::string> golden_case_names() { return names_in(TERRACE_GOLDEN_CASES); }
std::vector<std::string> golden_adapter_names() { return names_in(TERRACE_GOLDEN_ADAPTERS); }

std::string golden_case_directory(const std::string& name) {
  return std::string(TERRACE_GOLDEN_CASES) + "/" + name;
}

std::string golden_mxfp4_directory() { return TERRACE_GOLDEN_MXFP4; }

std::string golden_adapter_directory(const std::string& name) {
  return std::string(TERRACE_GOLDEN_ADAPTERS) + "/" + name;
}

}  // namespace terrace
