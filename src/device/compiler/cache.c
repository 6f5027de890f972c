#include "device/compiler/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/compiler/compiler_impl.h"
#include "device/compiler/tuning.h"
#include "device/pjrt/xla_home.h"
#include "device/pjrt/xla_version.h"
#include "device/xla_cpu/abi.h"

#define NAME_SIZE     (2 * TOW_CODE_KEY_SIZE + 1)
#define IDENTITY_SIZE 16384

struct tow_code_cache {
    int folder_fd;
    uint64_t bytes_max;
    tow_code_key_t identity; /* of plugin, XLA, processor, flags */
};

/* -- Identity of the compiler and the host ---------------------------------- */

typedef struct text {
    char bytes[IDENTITY_SIZE];
    size_t size;
    bool is_too_long; /* truncated, it could equal another host's */
} text_t;

static void add(text_t *text, const char *word)
{
    const size_t length = strlen(word) + 1;
    if (length > sizeof(text->bytes) - text->size) {
        text->is_too_long = true;
        return;
    }
    memcpy(text->bytes + text->size, word, length);
    text->size += length;
}

static void add_number(text_t *text, uint64_t number)
{
    char digits[24];
    snprintf(digits, sizeof(digits), "%llu", (unsigned long long)number);
    add(text, digits);
}

/* By size and time: a new build or installation has another identity. */
static void add_file(text_t *text, const char *path)
{
    struct stat info = {0};
    if (stat(path, &info) != 0) return;
    add(text, path);
    add_number(text, (uint64_t)info.st_size);
    add_number(text, (uint64_t)info.st_mtim.tv_sec);
    add_number(text, (uint64_t)info.st_mtim.tv_nsec);
}

/* Of the first processor: XLA, too, takes those of one host to be alike. */
static void add_processor(text_t *text)
{
    static const char *const names[] = {"vendor_id", "cpu family", "model",
                                        "stepping", "flags"};
    char *line = NULL;
    size_t capacity = 0;
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (file == NULL) return;
    while (getline(&line, &capacity, file) > 1)
        for (size_t i = 0; i < TOW_COUNT_OF(names); i++)
            if (strncmp(line, names[i], strlen(names[i])) == 0) {
                add(text, line);
                break;
            }
    free(line);
    fclose(file);
}

static tow_status_t identify(const char *plugin, tow_code_key_t *out_identity)
{
    char path[PATH_MAX + 32], home[PATH_MAX];
    const char *flags = getenv("XLA_FLAGS");
    text_t text = {0};
    cpu_set_t cores;
    add(&text, TOW_XLA_VERSION);
    add_number(&text, tow_xla_abi_number());
    add_file(&text, plugin);
    tow_xla_home(home, sizeof(home));
    snprintf(path, sizeof(path), "%s/libtensorflow_cc.so.2", home);
    add_file(&text, path);
    add_processor(&text);
    /* XLA partitions work by the number of cores when it compiles. */
    if (sched_getaffinity(0, sizeof(cores), &cores) == 0)
        add_number(&text, (uint64_t)CPU_COUNT(&cores));
    add(&text, flags != NULL ? flags : "");
    if (text.is_too_long)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "XLA_FLAGS and the processor's features have more "
                         "than %d bytes together: shorten XLA_FLAGS",
                         IDENTITY_SIZE);
    return tow_code_key_make(&(tow_bytes_t){text.bytes, text.size}, 1,
                             out_identity);
}

tow_status_t tow_code_cache_key(const tow_code_cache_t *cache,
                                const tow_compile_job_t *job,
                                tow_code_key_t *out_key)
{
    const char *kind = job->device_kind != NULL ? job->device_kind : "";
    const uint32_t format = (uint32_t)job->format;
    const tow_bytes_t parts[] = {
        {cache->identity.bytes, sizeof(cache->identity.bytes)},
        {&format, sizeof(format)},
        {kind, strlen(kind)},
        job->options,
        job->program,
    };
    return tow_code_key_make(parts, TOW_COUNT_OF(parts), out_key);
}

/* -- The folder ------------------------------------------------------------- */

bool tow_code_cache_folder(char *path, size_t capacity)
{
    const char *given = getenv("TOW_COMPILE_CACHE");
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length = -1;
    if (given != NULL && given[0] != '\0')
        length = strcmp(given, "off") == 0
                     ? -1
                     : snprintf(path, capacity, "%s", given);
    else if (cache != NULL && cache[0] == '/')
        length = snprintf(path, capacity, "%s/towpath/compiled", cache);
    else if (home != NULL && home[0] == '/')
        length = snprintf(path, capacity, "%s/.cache/towpath/compiled", home);
    return length > 0 && (size_t)length < capacity;
}

/* With its parents, where they do not exist. */
static void make_folder(const char *folder)
{
    char path[PATH_MAX];
    const int length = snprintf(path, sizeof(path), "%s/", folder);
    if (length >= (int)sizeof(path)) return; /* Opening it fails. */
    for (char *at = path + 1; *at != '\0'; at++)
        if (*at == '/') {
            *at = '\0';
            mkdir(path, 0700);
            *at = '/';
        }
}

static tow_status_t open_folder(const char *folder, int *out_fd)
{
    struct stat info;
    make_folder(folder);
    *out_fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*out_fd < 0) return TOW_ERRNO(errno, "opening folder %s", folder);
    if (fstat(*out_fd, &info) == 0 && info.st_uid == geteuid() &&
        (info.st_mode & (S_IWGRP | S_IWOTH)) == 0)
        return TOW_OK;
    return TOW_ERROR(
        TOW_PERMISSION_DENIED,
        "folder %s belongs to another user, or others may write to "
        "it: use chmod go-w, or set TOW_COMPILE_CACHE to another",
        folder);
}

tow_status_t tow_code_cache_open(const tow_code_cache_options_t *options,
                                 tow_code_cache_t **out_cache)
{
    *out_cache = NULL;
    tow_code_cache_t *cache = tow_calloc(1, sizeof(*cache));
    if (cache == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    cache->bytes_max =
        options->bytes_max != 0 ? options->bytes_max : TOW_CODE_CACHE_BYTES_MAX;
    tow_status_t status = open_folder(options->folder, &cache->folder_fd);
    if (status == TOW_OK) status = identify(options->plugin, &cache->identity);
    if (status != TOW_OK) {
        tow_code_cache_close(cache);
        return tow_status_annotate(status, "keeping compiled programs");
    }
    *out_cache = cache;
    return TOW_OK;
}

void tow_code_cache_close(tow_code_cache_t *cache)
{
    if (cache == NULL) return;
    if (cache->folder_fd >= 0) close(cache->folder_fd);
    tow_free(cache);
}

static void name_of(const tow_code_key_t *key, char name[NAME_SIZE])
{
    for (size_t i = 0; i < TOW_CODE_KEY_SIZE; i++)
        snprintf(name + 2 * i, 3, "%02x", key->bytes[i]);
}

/* -- Reading ---------------------------------------------------------------- */

static tow_status_t check_file(int fd, size_t *out_size)
{
    struct stat info;
    if (fstat(fd, &info) != 0) return TOW_ERRNO(errno, "fstat");
    if (!S_ISREG(info.st_mode) || info.st_uid != geteuid())
        return TOW_ERROR(TOW_DATA_LOSS, "it is not a file of this user");
    if (info.st_size > (off_t)TOW_CODE_CACHE_ENTRY_BYTES_MAX)
        return TOW_ERROR(TOW_DATA_LOSS, "it has %lld bytes: the limit is %llu",
                         (long long)info.st_size,
                         (unsigned long long)TOW_CODE_CACHE_ENTRY_BYTES_MAX);
    *out_size = (size_t)info.st_size;
    return TOW_OK;
}

/* Returns how many of the `size` bytes there are. */
static size_t read_all(int fd, uint8_t *bytes, size_t size)
{
    size_t count = 0;
    while (count < size) {
        const ssize_t got = read(fd, bytes + count, size - count);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        count += (size_t)got;
    }
    return count;
}

static tow_status_t unpack(tow_bytes_t file, const tow_code_key_t *key,
                           tow_compiled_t **out_compiled)
{
    tow_bytes_t signature, executable;
    TOW_RETURN_IF_ERROR(
        tow_cache_entry_parse(file, key, &signature, &executable));
    void *copy = tow_malloc(executable.size + 1);
    if (copy == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    memcpy(copy, executable.data, executable.size);
    return tow_compiled_make(copy, executable.size, signature, out_compiled);
}

static tow_status_t read_file(int fd, const tow_code_key_t *key,
                              tow_compiled_t **out_compiled)
{
    size_t size = 0;
    TOW_RETURN_IF_ERROR(check_file(fd, &size));
    uint8_t *bytes = tow_malloc(size + 1);
    if (bytes == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    size = read_all(fd, bytes, size);
    tow_status_t status = unpack((tow_bytes_t){bytes, size}, key, out_compiled);
    tow_free(bytes);
    return status;
}

tow_status_t tow_code_cache_get(const tow_code_cache_t *cache,
                                const tow_code_key_t *key,
                                tow_compiled_t **out_compiled)
{
    char name[NAME_SIZE];
    *out_compiled = NULL;
    name_of(key, name);
    const int fd = openat(cache->folder_fd, name,
                          O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return TOW_OK;
    tow_status_t status = fd < 0 ? TOW_ERRNO(errno, "opening it")
                                 : read_file(fd, key, out_compiled);
    if (status == TOW_OK)
        futimens(fd, NULL); /* The time of the last use. */
    else
        unlinkat(cache->folder_fd, name, 0);
    if (fd >= 0) close(fd);
    return tow_status_annotate(status, "compiled program %s", name);
}

/* -- Writing ---------------------------------------------------------------- */

typedef struct entry {
    char name[NAME_SIZE + 32];
    uint64_t size;
    struct timespec used;
} entry_t;

static int by_use(const void *left, const void *right)
{
    const struct timespec *a = &((const entry_t *)left)->used;
    const struct timespec *b = &((const entry_t *)right)->used;
    if (a->tv_sec != b->tv_sec) return a->tv_sec < b->tv_sec ? -1 : 1;
    return (a->tv_nsec > b->tv_nsec) - (a->tv_nsec < b->tv_nsec);
}

/* True for entries and for files that were being written. The cache leaves
 * other files in the folder alone. */
static bool is_ours(const char *name)
{
    const size_t length = strspn(name, "0123456789abcdef");
    if (length != 2 * TOW_CODE_KEY_SIZE) return false;
    const char *rest = name + length;
    return rest[0] == '\0' ||
           (rest[0] == '.' && rest[1] != '\0' &&
            rest[1 + strspn(rest + 1, "0123456789")] == '\0');
}

/* Includes partly written files of processes that died. */
static size_t list(const tow_code_cache_t *cache, entry_t *entries)
{
    size_t count = 0;
    const int fd = openat(cache->folder_fd, ".", O_RDONLY | O_CLOEXEC);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (folder == NULL) {
        if (fd >= 0) close(fd);
        return 0;
    }
    const struct dirent *found;
    while (count < TOW_CODE_CACHE_COUNT_MAX &&
           (found = readdir(folder)) != NULL) {
        struct stat info;
        const size_t length = strlen(found->d_name);
        if (!is_ours(found->d_name) || length >= sizeof(entries->name) ||
            fstatat(cache->folder_fd, found->d_name, &info,
                    AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(info.st_mode))
            continue;
        entry_t *entry = &entries[count++];
        memcpy(entry->name, found->d_name, length + 1);
        entry->size = (uint64_t)info.st_size;
        entry->used = info.st_mtim;
    }
    closedir(folder);
    return count;
}

/* Removes the least recently used files until the rest is within the limits. */
static void prune(const tow_code_cache_t *cache)
{
    entry_t *entries = tow_calloc(TOW_CODE_CACHE_COUNT_MAX, sizeof(*entries));
    if (entries == NULL) return;
    const size_t count = list(cache, entries);
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += entries[i].size;
    qsort(entries, count, sizeof(*entries), by_use);
    size_t left = count;
    for (size_t i = 0; i + 1 < count; i++) {
        if (bytes <= cache->bytes_max && left < TOW_CODE_CACHE_COUNT_MAX) break;
        unlinkat(cache->folder_fd, entries[i].name, 0);
        bytes -= entries[i].size;
        left--;
    }
    tow_free(entries);
}

static tow_status_t write_all(int fd, struct iovec *parts, int count)
{
    while (count > 0) {
        const ssize_t written = writev(fd, parts, count);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return TOW_ERRNO(errno, "writing it");
        size_t rest = (size_t)written;
        while (count > 0 && rest >= parts->iov_len) {
            rest -= parts->iov_len;
            parts++;
            count--;
        }
        if (count > 0) {
            parts->iov_base = (char *)parts->iov_base + rest;
            parts->iov_len -= rest;
        }
    }
    return TOW_OK;
}

static tow_status_t write_file(int fd, const tow_code_key_t *key,
                               tow_bytes_t signature, tow_bytes_t executable)
{
    uint8_t header[TOW_CACHE_ENTRY_HEADER_SIZE];
    TOW_RETURN_IF_ERROR(
        tow_cache_entry_header(key, signature, executable, header));
    struct iovec parts[] = {{header, sizeof(header)},
                            {(void *)signature.data, signature.size},
                            {(void *)executable.data, executable.size}};
    return write_all(fd, parts, TOW_COUNT_OF(parts));
}

static tow_status_t put(const tow_code_cache_t *cache,
                        const tow_code_key_t *key, tow_bytes_t signature,
                        tow_bytes_t executable)
{
    char name[NAME_SIZE], fresh[NAME_SIZE + 32];
    name_of(key, name);
    /* Unique: threads of one process compile different programs, and processes
     * have different ids. */
    snprintf(fresh, sizeof(fresh), "%s.%d", name, (int)getpid());
    const int fd =
        openat(cache->folder_fd, fresh,
               O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return TOW_ERRNO(errno, "making %s", fresh);
    tow_status_t status = write_file(fd, key, signature, executable);
    close(fd);
    if (status == TOW_OK &&
        renameat(cache->folder_fd, fresh, cache->folder_fd, name) != 0)
        status = TOW_ERRNO(errno, "renaming %s", fresh);
    if (status != TOW_OK) unlinkat(cache->folder_fd, fresh, 0);
    return status;
}

tow_status_t tow_code_cache_put(const tow_code_cache_t *cache,
                                const tow_code_key_t *key,
                                const tow_compiled_t *compiled)
{
    void *signature = NULL;
    size_t size = 0;
    TOW_RETURN_IF_ERROR(
        tow_signature_pack(&compiled->signature, &signature, &size));
    const uint64_t bytes = TOW_CACHE_ENTRY_HEADER_SIZE + size + compiled->size;
    tow_status_t status = TOW_OK;
    if (bytes <= TOW_CODE_CACHE_ENTRY_BYTES_MAX && bytes <= cache->bytes_max) {
        status = put(cache, key, (tow_bytes_t){signature, size},
                     (tow_bytes_t){compiled->bytes, compiled->size});
        prune(cache);
    }
    tow_free(signature);
    return tow_status_annotate(status, "keeping a compiled program");
}
