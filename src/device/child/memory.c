#include "device/child/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE_BYTES 4096

static tow_status_t open_sealed(const char *name, uint64_t size, int *out_fd)
{
    *out_fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*out_fd < 0) return TOW_ERRNO(errno, "memfd_create");
    if (ftruncate(*out_fd, (off_t)size) == 0 &&
        fcntl(*out_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
        return TOW_OK;
    tow_status_t status =
        TOW_ERRNO(errno, "sharing %" PRIu64 " bytes with a child", size);
    close(*out_fd);
    *out_fd = -1;
    return status;
}

void tow_child_memory_init(tow_child_memory_t *memory)
{
    *memory = (tow_child_memory_t){.fd = -1};
}

void tow_child_memory_deinit(tow_child_memory_t *memory)
{
    if (memory->bytes != NULL) munmap(memory->bytes, memory->size);
    if (memory->fd >= 0) close(memory->fd);
    tow_child_memory_init(memory);
}

tow_status_t tow_child_memory_ensure(tow_child_memory_t *memory, uint64_t size)
{
    if (memory->size >= size) return TOW_OK;
    tow_child_memory_deinit(memory);
    /* Twice the need: the next call may need a little more. */
    size = (size * 2 + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    TOW_RETURN_IF_ERROR(open_sealed("tow_child", size, &memory->fd));
    void *bytes =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);
    if (bytes == MAP_FAILED) {
        tow_status_t status =
            TOW_ERRNO(errno, "mapping %" PRIu64 " bytes", size);
        tow_child_memory_deinit(memory);
        return status;
    }
    memory->bytes = bytes;
    memory->size = size;
    return TOW_OK;
}

static tow_status_t write_all(int fd, const char *bytes, size_t size)
{
    for (size_t at = 0; at < size;) {
        const ssize_t count = write(fd, bytes + at, size - at);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0)
            return TOW_ERRNO(errno, "writing %zu bytes to a memory file", size);
        at += (size_t)count;
    }
    return TOW_OK;
}

tow_status_t tow_child_file_create(const char *name, const void *bytes,
                                   size_t size, int *out_fd)
{
    TOW_RETURN_IF_ERROR(open_sealed(name, size, out_fd));
    tow_status_t status = write_all(*out_fd, bytes, size);
    if (status == TOW_OK) return TOW_OK;
    close(*out_fd);
    *out_fd = -1;
    return status;
}
