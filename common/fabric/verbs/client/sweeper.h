// Looks at what time has made due: deadlines, queue pairs that do not flush, an idle connection.
#pragma once

#include "common/clock.h"
#include "common/fabric/verbs/client/alarm.h"
#include "common/fabric/verbs/client/completer.h"
#include "common/fabric/verbs/client/link.h"
#include "common/fabric/verbs/client/poster.h"
#include "common/fabric/verbs/client/traffic.h"

namespace oasiskv::fabric::verbs {

// Thread contract: guarded by the engine's mutex.
class Sweeper {
 public:
  Sweeper(const Link& link, Traffic& flight, Poster& poster, Completer& completer, Alarm& alarm)
      : link_(link), traffic_(flight), poster_(poster), completer_(completer), alarm_(alarm) {}

  // When Sweep has something to do next, as far as is known now.
  MonotonicTime Next() const;
  void Sweep(MonotonicTime now);

 private:
  void SweepBatches(MonotonicTime now);
  void SweepPairs(MonotonicTime now);

  const Link& link_;
  Traffic& traffic_;
  Poster& poster_;
  Completer& completer_;
  Alarm& alarm_;
};

}  // namespace oasiskv::fabric::verbs
