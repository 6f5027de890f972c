#include "worker/arena_lock_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collective/intra_host/intra_host.h"

/* The bytes of the lock file that are locked. */
enum {
    BYTE_GATE = 0,    /* while a worker joins or leaves */
    BYTE_MEMBERS = 1, /* shared by all that have joined */
};

/* How often a leaving worker may remove the lock file while we open it. */
#define TRY_COUNT_MAX 100

static int set_lock(int fd, int byte, short type, int command)
{
    struct flock lock = {
        .l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result;
    do {
        result = fcntl(fd, command, &lock);
    } while (result != 0 && errno == EINTR);
    return result;
}

static bool has_no_members(int fd)
{
    return set_lock(fd, BYTE_MEMBERS, F_WRLCK, F_OFD_SETLK) == 0;
}

/* Opens the lock file and locks its gate. False: the file was removed
 * meanwhile. */
static tow_status_t try_gate(arena_lock_t *lock, bool *out_is_in)
{
    struct stat info;
    *out_is_in = false;
    lock->fd = shm_open(lock->file, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (lock->fd < 0) return TOW_ERRNO(errno, "opening %s", lock->file);
    if (set_lock(lock->fd, BYTE_GATE, F_WRLCK, F_OFD_SETLKW) != 0 ||
        fstat(lock->fd, &info) != 0)
        return TOW_ERRNO(errno, "locking %s", lock->file);
    if (info.st_uid != geteuid())
        return TOW_ERROR(TOW_PERMISSION_DENIED,
                         "%s is user %u's: remove it from shared memory",
                         lock->file, (unsigned)info.st_uid);
    *out_is_in = info.st_nlink > 0;
    return TOW_OK;
}

static void close_fd(arena_lock_t *lock)
{
    if (lock->fd >= 0) close(lock->fd);
    lock->fd = -1;
}

static tow_status_t take_gate(arena_lock_t *lock)
{
    bool is_in = false;
    for (int i = 0; i < TRY_COUNT_MAX && !is_in; i++) {
        close_fd(lock);
        TOW_RETURN_IF_ERROR(try_gate(lock, &is_in));
    }
    if (is_in) return TOW_OK;
    return TOW_ERROR(TOW_UNAVAILABLE, "%s is created and removed repeatedly",
                     lock->file);
}

static tow_status_t make_arena(const arena_lock_t *lock)
{
    if (has_no_members(lock->fd)) tow_intra_host_arena_remove(lock->arena);
    tow_status_t status = tow_intra_host_arena_create(lock->arena);
    if (tow_status_code(status) == TOW_ALREADY_EXISTS) {
        tow_status_ignore(status, "the workers that use it have created it");
        status = TOW_OK;
    }
    if (status == TOW_OK &&
        set_lock(lock->fd, BYTE_MEMBERS, F_RDLCK, F_OFD_SETLK) != 0)
        status = TOW_ERRNO(errno, "locking %s", lock->file);
    return status;
}

static void name_lock(arena_lock_t *lock, const char *arena)
{
    *lock = (arena_lock_t){.fd = -1};
    snprintf(lock->arena, sizeof(lock->arena), "%s", arena);
    snprintf(lock->file, sizeof(lock->file), "%s.lock", arena);
}

static void remove_if_empty(const arena_lock_t *lock)
{
    if (!has_no_members(lock->fd)) return;
    tow_intra_host_arena_remove(lock->arena);
    shm_unlink(lock->file);
}

tow_status_t arena_lock_join(arena_lock_t *lock, const char *arena)
{
    name_lock(lock, arena);
    tow_status_t status = take_gate(lock);
    if (status == TOW_OK) {
        status = make_arena(lock);
        if (status != TOW_OK) remove_if_empty(lock);
    }
    if (status != TOW_OK) close_fd(lock);
    return status;
}

void arena_lock_open(arena_lock_t *lock)
{
    (void)set_lock(lock->fd, BYTE_GATE, F_UNLCK, F_OFD_SETLK);
}

void arena_lock_leave(arena_lock_t *lock)
{
    if (lock->fd < 0) return;
    if (set_lock(lock->fd, BYTE_GATE, F_WRLCK, F_OFD_SETLKW) == 0)
        remove_if_empty(lock);
    close_fd(lock);
}

void arena_lock_sweep(const char *arena)
{
    arena_lock_t lock;
    name_lock(&lock, arena);
    tow_status_t status = take_gate(&lock);
    if (status == TOW_OK) remove_if_empty(&lock);
    tow_status_ignore(status, "the next worker removes it");
    close_fd(&lock);
}
