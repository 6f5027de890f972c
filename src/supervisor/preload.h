/* Loads XLA once for all processes of a cluster on this host.
 *
 * Loading takes 0.2 to 0.3 s of a core, nine tenths of it for looking up
 * 264,000 symbols, and 28 MB of private memory. The supervisor loads it once
 * and forks workers and compilers, which share that memory. Only XLA's static
 * initialisers have run by then. */
#ifndef TOW_SUPERVISOR_PRELOAD_H_
#define TOW_SUPERVISOR_PRELOAD_H_

#include <stdbool.h>

/* Loading takes many seconds from a slow disk and cannot be cancelled. A
 * SIGTERM, SIGINT or SIGHUP, which the caller blocks, that arrives meanwhile
 * replaces this process at once by `tow` with these arguments, which cleans up.
 * False: loading failed, or created threads, which a forked process would lack.
 * Then every process loads its own copy and reports errors. */
bool tow_preload_xla(char *const *arguments_if_interrupted);

#endif /* TOW_SUPERVISOR_PRELOAD_H_ */
