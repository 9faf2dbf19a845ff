#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "optim/state_format.h"
#include "optim/update_rule.h"
#include "runtime/session/gpu_memory.h"

namespace terrace {

struct SessionGroup {
  const UpdateRule* rule = nullptr;
  RuleOptions options;
};

// A parameter tensor that somebody else owns.
struct SessionTensor {
  std::string name;
  std::int32_t group = 0;
  DType dtype = DType::kF32;
  std::byte* data = nullptr;
  std::vector<std::int64_t> shape;
  std::int64_t elements = 0;
  bool is_frozen = false;
  GpuPlace place = {};  // of `data`
};

// A value for one hyperparameter of a rule, named as the configuration file's key.
using NamedValue = std::pair<std::string, double>;

// The groups and tensors of a session, in the order in which they were added. One thread.
class ParameterTable {
 public:
  // Returns the number of the new group. Throws SessionError that names the problem.
  std::int32_t add_group(std::string_view rule, std::span<const NamedValue> values,
                         double weight_decay);
  // Returns the number of the new tensor, or of the tensor that it is tied to, which has the same
  // memory, type, size, group and stream. Throws SessionError.
  std::int32_t add_tensor(SessionTensor tensor);

  const std::deque<SessionGroup>& groups() const { return groups_; }
  const std::deque<SessionTensor>& tensors() const { return tensors_; }
  // Throws SessionError where no tensor has that number.
  const SessionTensor& tensor(std::int32_t number) const;
  const SessionGroup& group_of(const SessionTensor& tensor) const;

 private:
  void check_name(const std::string& name) const;

  std::deque<SessionGroup> groups_;
  std::deque<SessionTensor> tensors_;
  std::unordered_map<std::string, std::int32_t> by_name_;  // has each name of tied tensors
  // The numbers of the tensors, sorted by the address of the first byte.
  std::vector<std::int32_t> by_address_;
};

// Returns how the state of a tensor is stored: an fp32 parameter is its own master, others have a
// master.
StateFormat state_format_of(const SessionTensor& tensor, const SessionGroup& group);

}  // namespace terrace
