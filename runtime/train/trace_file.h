#pragma once

#include <array>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

#include "runtime/config/step_range.h"
#include "runtime/step/step_waits.h"

namespace terrace {

// trace.json of a run: the work of each lane in some steps, in Chrome's trace event format (opens
// in Perfetto and chrome://tracing). Each lane has one track with its ops and, between them, its
// waits, each named after the op that was waited for. Reads and writes overlap: their track shows
// when any of them is in flight, and each one is an async event of its own. Times are microseconds
// since the first traced op.
class TraceFile {
 public:
  // Creates or replaces run_dir/trace.json. Borrows the program. Throws IoError, as all methods do.
  TraceFile(const std::string& run_dir, const Program& program, StepRange steps);

  // Adds a run. Call it for every run in order, drains included: runs of steps that are not traced
  // are remembered only because traced ops may have waited for them.
  void add(const RunReport& report, const StepWaits& waits);
  // Completes the document of a run that has failed, as far as possible.
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  // Completes the document, and returns a line that says where it is and what opens it. The file of
  // a process that was killed opens too: viewers accept a torn end.
  std::string finish();

 private:
  // Overlapping transfers of a lane, from the first one's start.
  struct InFlight {
    OpTime time;
    int transfers = 0;
  };

  void add_track_names();
  void add_op(const RunReport& report, OpId op, const StepWaits& waits);
  void add_async(std::string_view name, std::string_view id, Lane lane, const OpTime& time,
                 std::string_view arguments);
  void add_transfer(Lane lane, const OpTime& time);
  void close_transfers(Lane lane);
  void end_document();
  std::string slice(std::string_view name, std::string_view category, Lane lane, const OpTime& time,
                    std::string_view arguments) const;
  void add_event(const std::string& event);
  double time_us(std::int64_t ns) const { return static_cast<double>(ns - origin_ns_) * 1e-3; }
  void check_stream();

  std::string path_;
  const Program& program_;
  StepRange steps_;
  std::ofstream stream_;
  bool first_ = true;
  bool is_complete_ = false;
  std::int64_t origin_ns_ = 0;                          // 0: no traced op yet
  std::array<std::int64_t, kLaneCount> last_end_ns_{};  // per lane, of the runs added
  std::array<InFlight, kLaneCount> in_flight_{};
};

}  // namespace terrace
