#include <array>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "runtime/config/device_flag.h"
#include "runtime/config/thread_count.h"
#include "runtime/config/toml_text.h"
#include "runtime/config/train_flags.h"

namespace terrace {
namespace {

constexpr auto kPlacements = std::to_array<std::string_view>({"auto", "device", "host", "nvme"});
constexpr auto kEngines = std::to_array<std::string_view>({"auto", "io_uring", "posix"});

// The flag that places a state, with its help; the table is in the order of StateClass.
struct PlaceFlag {
  std::string_view name;
  std::string_view help;
};
constexpr std::array<PlaceFlag, kStateClassCount> kPlaceFlags = {{
    {"place-parameters", "Where parameters live between uses (auto: fastest tier first)"},
    {"place-gradients", "Where finished gradients live (auto)"},
    {"place-optimizer", "Where the optimizer state lives (auto)"},
    {"place-activations", "Where activations wait for the backward pass (auto)"},
    {"place-gradient-errors",
     "Where the errors of gradient codes live, with --error-feedback (auto)"},
}};
static_assert(!kPlaceFlags.back().name.empty(), "a state without a flag");

template <StateClass State>
void set_place(TrainOptions& options, const FlagValue& value) {
  options.tiers.places[State] = static_cast<Placement>(value.choice(kPlacements));
}
template <StateClass State>
std::string show_place(const TrainOptions& options) {
  return toml_string(kPlacements.at(static_cast<std::size_t>(options.tiers.places[State])));
}

template <std::size_t... Is>
std::vector<TrainFlag> place_flags(std::index_sequence<Is...> /*states*/) {
  return {TrainFlag{{kPlaceFlags.at(Is).name, "Device and tiers", "auto|device|host|nvme",
                     kPlaceFlags.at(Is).help},
                    set_place<static_cast<StateClass>(Is)>,
                    show_place<static_cast<StateClass>(Is)>}...};
}

// Reads DIR or DIR:SIZE. The text after the last colon is a size if it begins with a digit.
NvmeDirectory read_nvme(const FlagValue& value, const std::string& text) {
  NvmeDirectory directory;
  directory.path = text;
  const std::size_t colon = text.rfind(':');
  if (colon != std::string::npos && colon + 1 < text.size() && text[colon + 1] >= '0' &&
      text[colon + 1] <= '9' && text.find('/', colon) == std::string::npos) {
    directory.path = text.substr(0, colon);
    directory.budget_bytes = FlagValue(value.where(), {text.substr(colon + 1)}).size();
  }
  if (directory.path.empty()) value.refuse("no directory", "write DIR or DIR:SIZE");
  return directory;
}

// Returns whether two paths mean the same directory, however they are written. For directories that
// do not exist, only the texts are compared.
bool is_same_directory(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code problem;
  const fs::path first = fs::weakly_canonical(fs::absolute(a), problem);
  const fs::path second = fs::weakly_canonical(fs::absolute(b), problem);
  return problem ? a == b : first == second;
}

void set_nvme(TrainOptions& options, const FlagValue& value) {
  options.tiers.nvme.clear();
  for (const std::string& text : value.texts()) {
    NvmeDirectory directory = read_nvme(value, text);
    for (const NvmeDirectory& other : options.tiers.nvme) {
      if (is_same_directory(other.path, directory.path)) {
        value.refuse("names a directory twice", "give each directory once");
      }
    }
    options.tiers.nvme.push_back(std::move(directory));
  }
}

std::string show_nvme(const TrainOptions& options) {
  std::vector<std::string> texts;
  for (const NvmeDirectory& directory : options.tiers.nvme) {
    texts.push_back(directory.path);
    if (directory.budget_bytes) texts.back() += ":" + size_text(*directory.budget_bytes);
  }
  return texts.empty() ? std::string{} : toml_strings(texts);
}

void set_device(TrainOptions& options, const FlagValue& value) {
  options.tiers.device = read_device(value);
}

std::string show_device(const TrainOptions& options) {
  return toml_string(device_text(options.tiers.device));
}

constexpr auto kBudgetFlags = std::to_array<TrainFlag>({
    {{"device", "Device and tiers", "auto|cpu|cuda[:N]",
      "The compute device. cuda: the GPU whose number is the rank's number on its host; auto: with "
      "one rank the first GPU, if it can be used, else the CPU"},
     set_device,
     show_device},
    {{"device-memory", "Device and tiers", "SIZE",
      "Device memory budget (on a GPU: its free memory); with --device cpu: a separate arena "
      "instead of one tier with the host's memory"},
     [](TrainOptions& o, const FlagValue& v) { o.tiers.device_memory = v.size(); },
     [](const TrainOptions& o) {
       return o.tiers.device_memory ? toml_size(*o.tiers.device_memory) : std::string{};
     }},
    {{"host-memory", "Device and tiers", "SIZE",
      "Host memory budget of this rank (from the cgroup limit and free memory)"},
     [](TrainOptions& o, const FlagValue& v) { o.tiers.host_memory = v.size(); },
     [](const TrainOptions& o) {
       return o.tiers.host_memory ? toml_size(*o.tiers.host_memory) : std::string{};
     }},
    {{"nvme", "Device and tiers", "DIR[:SIZE]",
      "A directory on a drive and its budget; several are striped", FlagArity::kRepeated},
     set_nvme,
     show_nvme},
});

constexpr auto kMovementFlags = std::to_array<TrainFlag>({
    {{"io-engine", "Device and tiers", "auto|io_uring|posix",
      "How drives are read and written (auto: io_uring where the system allows it)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.tiers.io_engine = static_cast<IoEngineKind>(v.choice(kEngines));
     },
     [](const TrainOptions& o) {
       return toml_string(kEngines.at(static_cast<std::size_t>(o.tiers.io_engine)));
     }},
    {{"lookahead", "Device and tiers", "UNITS",
      "Prefetch distance: how many units ahead loads are issued at most (auto)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.tiers.lookahead.reset();
       if (v.text() != "auto") o.tiers.lookahead = static_cast<int>(v.integer(0, 1'000'000));
     },
     [](const TrainOptions& o) {
       return o.tiers.lookahead ? toml_integer(*o.tiers.lookahead) : toml_string("auto");
     }},
    {{"threads", "Device and tiers", "N",
      "Number of compute threads (auto: from the affinity mask and the cgroup limit)"},
     [](TrainOptions& o, const FlagValue& v) {
       o.tiers.threads.reset();
       if (v.text() != "auto") o.tiers.threads = read_threads(v);
     },
     [](const TrainOptions& o) {
       return o.tiers.threads ? toml_integer(*o.tiers.threads) : toml_string("auto");
     }},
});

}  // namespace

std::vector<TrainFlag> tier_flags() {
  std::vector<TrainFlag> flags(kBudgetFlags.begin(), kBudgetFlags.end());
  const std::vector<TrainFlag> places = place_flags(std::make_index_sequence<kStateClassCount>());
  flags.insert(flags.end(), places.begin(), places.end());
  flags.insert(flags.end(), kMovementFlags.begin(), kMovementFlags.end());
  return flags;
}

std::string_view place_flag(StateClass state) {
  return kPlaceFlags.at(static_cast<std::size_t>(state)).name;
}

}  // namespace terrace
