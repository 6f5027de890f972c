/* Custom calls that are the client's, and XLA's partitioner: those that only the
 * client can divide among devices, which it asks by way of tow_xla_asker_t, and
 * those by which each device calls the client. In a translation unit of its own, since it
 * needs headers of XLA that hardly anything else here does. */
#ifndef TOW_DEVICE_XLA_CPU_ASKING_HH_
#define TOW_DEVICE_XLA_CPU_ASKING_HH_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "device/xla_cpu/xla_cpu.h"

namespace tow
{

/* Once a process is enough. */
void register_partitioners();

void set_asker(const tow_xla_asker_t *asker);

/* Is it a call that asks, and is there somebody to be asked? */
bool may_ask(absl::string_view target);

/* Around each compilation. What XLA has no way to hear from us while it spreads
 * shardings, the end gives: the first answer that was an error. */
void begin_asking();
absl::Status end_asking();

} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_ASKING_HH_ */
