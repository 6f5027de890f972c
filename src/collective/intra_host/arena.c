#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "collective/intra_host/arena_impl.h"

static tow_status_t check_name(const char *name)
{
    size_t length = strlen(name);
    if (name[0] != '/' || length < 2 || length > NAME_MAX ||
        strchr(name + 1, '/') != NULL)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "invalid name of shared memory '%s': it must begin "
                         "with \"/\", contain no other, and have at most %d "
                         "bytes",
                         name, NAME_MAX);
    return TOW_OK;
}

/* The file system gives memory page by page, and ends a process with SIGBUS
 * when it has no more. */
static tow_status_t check_free_space(int fd)
{
    struct statvfs space;
    if (fstatvfs(fd, &space) != 0)
        return TOW_ERRNO(errno, "reading the free space of /dev/shm");
    const uint64_t free_bytes = (uint64_t)space.f_bavail * space.f_bsize;
    if (free_bytes >= sizeof(arena_t)) return TOW_OK;
    return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                     "/dev/shm has %llu bytes free, and collectives of this "
                     "host may need %zu: make it larger (`mount -o "
                     "remount,size=1g /dev/shm`; containers: --shm-size=1g)",
                     (unsigned long long)free_bytes, sizeof(arena_t));
}

tow_status_t tow_intra_host_arena_create(const char *name)
{
    TOW_RETURN_IF_ERROR(check_name(name));
    int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) return TOW_ERRNO(errno, "creating shared memory %s", name);
    tow_status_t status = TOW_OK;
    /* The magic number first: a process that sees the full size sees it too. */
    uint64_t magic = ARENA_MAGIC;
    if (pwrite(fd, &magic, sizeof(magic), 0) != sizeof(magic) ||
        ftruncate(fd, sizeof(arena_t)) != 0)
        status = TOW_ERRNO(errno, "sizing shared memory %s to %zu bytes", name,
                           sizeof(arena_t));
    if (status == TOW_OK) status = check_free_space(fd);
    close(fd);
    if (status != TOW_OK) shm_unlink(name);
    return status;
}

void tow_intra_host_arena_remove(const char *name)
{
    shm_unlink(name);
}

static tow_status_t map(int fd, const char *name, arena_t **out_arena)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return TOW_ERRNO(errno, "reading the attributes of shared memory %s",
                         name);
    if (info.st_uid != geteuid() || (info.st_mode & 0077) != 0)
        return TOW_ERROR(TOW_PERMISSION_DENIED,
                         "shared memory %s has owner %u and mode %o: it must "
                         "belong to this user and have mode 600",
                         name, (unsigned)info.st_uid, info.st_mode & 0777);
    if (info.st_size != (off_t)sizeof(arena_t))
        return TOW_ERROR(
            TOW_FAILED_PRECONDITION,
            "shared memory %s has %lld bytes, but an arena has %zu: it was "
            "created by another version, or is not an arena",
            name, (long long)info.st_size, sizeof(arena_t));
    arena_t *arena =
        mmap(NULL, sizeof(arena_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (arena == MAP_FAILED)
        return TOW_ERRNO(errno, "mapping shared memory %s", name);
    if (atomic_load(&arena->magic) != ARENA_MAGIC) {
        arena_close(arena);
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "shared memory %s is not an arena of this version",
                         name);
    }
    *out_arena = arena;
    return TOW_OK;
}

static tow_status_t make_private(arena_t **out_arena)
{
    arena_t *arena = mmap(NULL, sizeof(arena_t), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == MAP_FAILED)
        return TOW_ERRNO(errno, "taking %zu bytes of memory", sizeof(arena_t));
    atomic_store(&arena->magic, ARENA_MAGIC);
    *out_arena = arena;
    return TOW_OK;
}

tow_status_t arena_open(const char *name, arena_t **out_arena)
{
    if (name == NULL) return make_private(out_arena);
    TOW_RETURN_IF_ERROR(check_name(name));
    int fd = shm_open(name, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return TOW_ERRNO(errno, "opening shared memory %s", name);
    tow_status_t status = map(fd, name, out_arena);
    close(fd);
    return status;
}

void arena_close(arena_t *arena)
{
    if (arena != NULL) munmap(arena, sizeof(*arena));
}
