#include "worker/door_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collective/host/host.h"

/* The bytes of the lock file that are locked. */
enum {
    BYTE_DOORWAY = 0, /* somebody comes or goes */
    BYTE_INSIDE = 1,  /* shared by all who are in */
};

/* Times that the lock file may be removed under our hands by one who leaves. */
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

static bool is_empty_inside(int fd)
{
    return set_lock(fd, BYTE_INSIDE, F_WRLCK, F_OFD_SETLK) == 0;
}

/* Opens the lock file and stands in the doorway. False: it was removed just
 * then. */
static tow_status_t try_doorway(door_t *door, bool *out_is_in)
{
    struct stat info;
    *out_is_in = false;
    door->fd = shm_open(door->lock, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (door->fd < 0) return TOW_ERRNO(errno, "opening %s", door->lock);
    if (set_lock(door->fd, BYTE_DOORWAY, F_WRLCK, F_OFD_SETLKW) != 0 ||
        fstat(door->fd, &info) != 0)
        return TOW_ERRNO(errno, "locking %s", door->lock);
    if (info.st_uid != geteuid())
        return TOW_ERROR(TOW_PERMISSION_DENIED,
                         "%s is user %u's: remove it from shared memory",
                         door->lock, (unsigned)info.st_uid);
    *out_is_in = info.st_nlink > 0;
    return TOW_OK;
}

static void close_fd(door_t *door)
{
    if (door->fd >= 0) close(door->fd);
    door->fd = -1;
}

static tow_status_t stand_in_doorway(door_t *door)
{
    bool is_in = false;
    for (int i = 0; i < TRY_COUNT_MAX && !is_in; i++) {
        close_fd(door);
        TOW_RETURN_IF_ERROR(try_doorway(door, &is_in));
    }
    if (is_in) return TOW_OK;
    return TOW_ERROR(TOW_UNAVAILABLE, "%s comes and goes", door->lock);
}

static tow_status_t make_arena(const door_t *door)
{
    if (is_empty_inside(door->fd)) tow_host_arena_remove(door->arena);
    tow_status_t status = tow_host_arena_create(door->arena);
    if (tow_status_code(status) == TOW_ALREADY_EXISTS) {
        tow_status_ignore(status, "those who are in have made it");
        status = TOW_OK;
    }
    if (status == TOW_OK &&
        set_lock(door->fd, BYTE_INSIDE, F_RDLCK, F_OFD_SETLK) != 0)
        status = TOW_ERRNO(errno, "locking %s", door->lock);
    return status;
}

static void name_door(door_t *door, const char *arena)
{
    *door = (door_t){.fd = -1};
    snprintf(door->arena, sizeof(door->arena), "%s", arena);
    snprintf(door->lock, sizeof(door->lock), "%s.lock", arena);
}

tow_status_t door_enter(door_t *door, const char *arena)
{
    name_door(door, arena);
    tow_status_t status = stand_in_doorway(door);
    if (status == TOW_OK) status = make_arena(door);
    if (status != TOW_OK) close_fd(door);
    return status;
}

void door_let_in(door_t *door)
{
    (void)set_lock(door->fd, BYTE_DOORWAY, F_UNLCK, F_OFD_SETLK);
}

static void remove_if_empty(const door_t *door)
{
    if (!is_empty_inside(door->fd)) return;
    tow_host_arena_remove(door->arena);
    shm_unlink(door->lock);
}

void door_leave(door_t *door)
{
    if (door->fd < 0) return;
    if (set_lock(door->fd, BYTE_DOORWAY, F_WRLCK, F_OFD_SETLKW) == 0)
        remove_if_empty(door);
    close_fd(door);
}

void door_sweep(const char *arena)
{
    door_t door;
    name_door(&door, arena);
    tow_status_t status = stand_in_doorway(&door);
    if (status == TOW_OK) remove_if_empty(&door);
    tow_status_ignore(status, "the next to come sweeps");
    close_fd(&door);
}
