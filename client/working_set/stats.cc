#include "client/working_set/stats.h"

namespace oasiskv {

void AddStats(const WorkingSetStats& from, WorkingSetStats* to) {
  to->steps += from.steps;
  to->predicted += from.predicted;
  to->hit += from.hit;
  to->admitted += from.admitted;
  to->promoted += from.promoted;
  to->refused_by_cap += from.refused_by_cap;
  to->late += from.late;
  to->skipped += from.skipped;
  to->degraded += from.degraded;
  to->demanded += from.demanded;
  to->bytes_moved += from.bytes_moved;
  to->bytes_used += from.bytes_used;
  to->admission_bytes += from.admission_bytes;
  to->agreement_samples += from.agreement_samples;
  to->agreement_sum += from.agreement_sum;
}

}  // namespace oasiskv
