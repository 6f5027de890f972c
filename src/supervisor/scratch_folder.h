/* Temporary folders. */
#ifndef TOW_SUPERVISOR_SCRATCH_FOLDER_H_
#define TOW_SUPERVISOR_SCRATCH_FOLDER_H_

#include <stddef.h>

#include "base/macros.h"
#include "base/status.h"

/* Creates a folder of mode 0700 under TMPDIR. */
tow_status_t tow_scratch_folder_create(char *path, size_t capacity)
    TOW_MUST_USE;
/* Removes a folder and its contents. */
void tow_scratch_folder_remove(const char *path);

#endif /* TOW_SUPERVISOR_SCRATCH_FOLDER_H_ */
