/* Memory that a parent shares with its child process: a memory file, sealed so
 * that the child cannot shrink it (the parent would get SIGBUS). */
#ifndef TOW_DEVICE_CHILD_MEMORY_H_
#define TOW_DEVICE_CHILD_MEMORY_H_

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct tow_child_memory {
    int fd; /* -1: none */
    void *bytes;
    uint64_t size;
} tow_child_memory_t;

void tow_child_memory_init(tow_child_memory_t *memory);
void tow_child_memory_deinit(tow_child_memory_t *memory);
/* At least `size` bytes: another memory file if this one is too small, without
 * its content. */
tow_status_t tow_child_memory_ensure(tow_child_memory_t *memory, uint64_t size)
    TOW_MUST_USE;

/* A sealed memory file with these bytes; the caller closes it. */
tow_status_t tow_child_file_create(const char *name, const void *bytes,
                                   size_t size, int *out_fd) TOW_MUST_USE;

#endif /* TOW_DEVICE_CHILD_MEMORY_H_ */
