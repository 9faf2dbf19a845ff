#include "runtime/config/version.h"

namespace terrace {

std::string_view terrace_version() { return TERRACE_VERSION; }

}  // namespace terrace
