/* Towpath: one program drives the accelerators of many hosts.
 *
 * The public C interface. It grows with the runtime; what is here is stable. */
#ifndef TOWPATH_TOWPATH_H_
#define TOWPATH_TOWPATH_H_

#include <towpath/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TOW_VERSION_MAJOR 0
#define TOW_VERSION_MINOR 1
#define TOW_VERSION_PATCH 0

/* "0.1.0": the version of the library that is loaded, which may differ from
 * the TOW_VERSION_* that a program was compiled with. */
const char *tow_version(void);

#ifdef __cplusplus
}
#endif

#endif /* TOWPATH_TOWPATH_H_ */
