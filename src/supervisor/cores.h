/* Binds the processes of a cluster to shares of the cores.
 *
 * Device threads that wait for each other yield their core. A switch between
 * threads of one process on one core takes half a microsecond; across cores
 * and processes it takes several and a cold cache. So each of several
 * processes on a host gets a share of the cores, as with MPI launchers:
 * eight devices in two processes on two cores took 63 us per step instead of
 * 158 on a busy machine. */
#ifndef TOW_SUPERVISOR_CORES_H_
#define TOW_SUPERVISOR_CORES_H_

#include <stddef.h>

/* Binds the calling thread, and threads that it starts later, to the share of
 * process `index` of `count`: a part of the allowed cores, or one if there are
 * more processes than cores. A single process keeps all. Failure is ignored: it
 * only affects speed. */
void tow_cores_take_share(size_t index, size_t count);

/* Cores that the calling thread may use; at least 1. */
size_t tow_cores_count(void);

#endif /* TOW_SUPERVISOR_CORES_H_ */
