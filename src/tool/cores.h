/* Cores of this host, shared out among processes that have devices on them.
 *
 * Threads of devices that wait for each other offer their core to the next. Between
 * threads of one process on one core that costs half a microsecond; across cores and
 * processes several, and a cold cache. So a process of several on a host stays on a
 * share of the cores, as MPI's launchers do it: eight devices in two processes on
 * two cores took 63 us a step instead of 158, on a busy machine. */
#ifndef TOW_TOOL_CORES_H_
#define TOW_TOOL_CORES_H_

#include <stddef.h>

/* Binds the calling thread, and those it will start, to the share of process
 * `index` of `count`: a part of the cores that it may use now, or one of them if
 * there are more processes than cores. A single process keeps all. What the
 * system refuses is left as it is: it is about speed alone. */
void tow_cores_take_share(size_t index, size_t count);

/* That the calling thread may use; at least 1. */
size_t tow_cores_count(void);

#endif /* TOW_TOOL_CORES_H_ */
