/* Where the XLA is that libtow_xla_cpu.so stands on. A build knows by the run
 * path that it linked in; what is installed elsewhere looks for what `tow setup`
 * (python/towpath/xla.py) unpacked. */
#ifndef TOW_DEVICE_PJRT_XLA_HOME_H_
#define TOW_DEVICE_PJRT_XLA_HOME_H_

#include <stdbool.h>
#include <stddef.h>

/* Is this plugin the one that needs it? */
bool tow_xla_home_is_needed(const char *plugin_path);

/* TOW_XLA_DIR, or the pinned version in the user's cache; "" if there is no
 * cache folder. */
void tow_xla_home(char *folder, size_t capacity);

/* Loads XLA's libraries for good, so that a library which needs them by name
 * finds them. False if they are not there or do not load: dlerror says why. */
bool tow_xla_home_load(const char *folder);

#endif /* TOW_DEVICE_PJRT_XLA_HOME_H_ */
