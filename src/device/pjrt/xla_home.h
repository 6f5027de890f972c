/* Finds the XLA that libtow_xla_cpu.so needs. A build finds it by its run path;
 * an installation uses the one that `tow setup` (python/towpath/xla.py)
 * unpacked. */
#ifndef TOW_DEVICE_PJRT_XLA_HOME_H_
#define TOW_DEVICE_PJRT_XLA_HOME_H_

#include <stdbool.h>
#include <stddef.h>

/* True if the plugin is libtow_xla_cpu.so. */
bool tow_xla_home_is_needed(const char *plugin_path);

/* TOW_XLA_DIR, or the pinned version in the user's cache folder; "" without a
 * cache folder. */
void tow_xla_home(char *folder, size_t capacity);

/* Loads XLA's libraries and never unloads them, so that a library that needs
 * them by name finds them. False if they do not exist or do not load: see
 * dlerror. */
bool tow_xla_home_load(const char *folder);

#endif /* TOW_DEVICE_PJRT_XLA_HOME_H_ */
