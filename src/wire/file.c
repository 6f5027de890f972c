#include "wire/file_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wire/text_impl.h"

static tow_status_t check_kind(int fd, const char *path, tow_file_kind_t kind,
                               const char *what)
{
    struct stat facts;
    if (fstat(fd, &facts) != 0) return TOW_ERRNO(errno, "%s %s", what, path);
    if (!S_ISREG(facts.st_mode))
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "%s %s: not a regular file",
                         what, path);
    if (kind == TOW_FILE_PUBLIC || (facts.st_mode & 077) == 0) return TOW_OK;
    char word[PATH_MAX + 64];
    return TOW_ERROR(TOW_PERMISSION_DENIED,
                     "%s %s is open to other users (mode %04o); run: "
                     "chmod 600 %s",
                     what, path, (unsigned)(facts.st_mode & 07777),
                     tow_text_quote_for_shell(path, word, sizeof(word)));
}

static tow_status_t read_all(int fd, const char *path, const char *what,
                             uint8_t *bytes, size_t capacity, size_t *out_count)
{
    size_t count = 0;
    while (true) {
        uint8_t beyond;
        ssize_t got = count < capacity
                          ? read(fd, bytes + count, capacity - count)
                          : read(fd, &beyond, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return TOW_ERRNO(errno, "reading %s %s", what, path);
        if (got == 0) break;
        if (count == capacity)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "%s %s is larger than %zu bytes: is it the right "
                             "file?",
                             what, path, capacity);
        count += (size_t)got;
    }
    *out_count = count;
    return TOW_OK;
}

tow_status_t tow_file_read(const char *path, tow_file_kind_t kind,
                           const char *what, uint8_t *bytes, size_t capacity,
                           size_t *out_count)
{
    *out_count = 0;
    /* O_NONBLOCK: opening a named pipe would block. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) return TOW_ERRNO(errno, "%s %s", what, path);
    tow_status_t status = check_kind(fd, path, kind, what);
    if (status == TOW_OK)
        status = read_all(fd, path, what, bytes, capacity, out_count);
    close(fd);
    return status;
}

static tow_status_t write_all(int fd, const char *path, const char *what,
                              const uint8_t *bytes, size_t count)
{
    while (count > 0) {
        ssize_t put = write(fd, bytes, count);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return TOW_ERRNO(errno, "writing %s %s", what, path);
        bytes += put;
        count -= (size_t)put;
    }
    return TOW_OK;
}

tow_status_t tow_file_create(const char *path, tow_file_kind_t kind,
                             const char *what, const uint8_t *bytes,
                             size_t count)
{
    mode_t mode = kind == TOW_FILE_SECRET ? 0600 : 0644;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0 && errno == EEXIST)
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "%s %s already exists; name "
                         "another file, or remove this one first",
                         what, path);
    if (fd < 0) return TOW_ERRNO(errno, "making %s %s", what, path);
    tow_status_t status = write_all(fd, path, what, bytes, count);
    if (close(fd) != 0 && status == TOW_OK)
        status = TOW_ERRNO(errno, "writing %s %s", what, path);
    if (status != TOW_OK) unlink(path);
    return status;
}
