#include "wire/folder_testing_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "wire/file_impl.h"

static tow_status_t read_secret(const char *path, uint8_t *bytes,
                                size_t capacity, size_t *out_count)
{
    return tow_file_read(path, TOW_FILE_SECRET, "token file", bytes, capacity,
                         out_count);
}

static void expect(tow_status_t status, tow_code_t code, const char *words)
{
    assert_int_equal(tow_status_code(status), code);
    if (strstr(tow_status_message(status), words) == NULL)
        fail_msg("no '%s' in: %s", words, tow_status_message(status));
    tow_status_release(status);
}

static tow_status_t create(const char *path, tow_file_kind_t kind)
{
    return tow_file_create(path, kind, "token file", (const uint8_t *)"abc", 3);
}

static mode_t mode_of(const char *path)
{
    struct stat facts;
    assert_int_equal(stat(path, &facts), 0);
    return facts.st_mode & 07777;
}

static void created_file_reads_back_with_its_mode(void **state)
{
    mode_t before = umask(0);
    assert_null(create(in_folder("secret"), TOW_FILE_SECRET));
    assert_null(create(in_folder("public"), TOW_FILE_PUBLIC));
    umask(before);
    assert_int_equal(mode_of(in_folder("secret")), 0600);
    assert_int_equal(mode_of(in_folder("public")), 0644);
    uint8_t bytes[3];
    size_t count;
    assert_null(read_secret(in_folder("secret"), bytes, sizeof(bytes), &count));
    assert_int_equal(count, 3);
    assert_memory_equal(bytes, "abc", 3);
}

static void existing_file_is_kept(void **state)
{
    const char *path = in_folder("there");
    assert_null(create(path, TOW_FILE_SECRET));
    expect(tow_file_create(path, TOW_FILE_SECRET, "token file",
                           (const uint8_t *)"other", 5),
           TOW_ALREADY_EXISTS, path);
    uint8_t bytes[8];
    size_t count;
    assert_null(read_secret(path, bytes, sizeof(bytes), &count));
    assert_memory_equal(bytes, "abc", 3);
}

static void dangling_link_is_not_written_through(void **state)
{
    const char *path = in_folder("link");
    assert_int_equal(symlink(in_folder("elsewhere"), path), 0);
    expect(create(path, TOW_FILE_SECRET), TOW_ALREADY_EXISTS, path);
    assert_int_not_equal(access(in_folder("elsewhere"), F_OK), 0);
}

static void secret_open_to_others_is_refused_with_the_remedy(void **state)
{
    static const mode_t modes[] = {0640, 0604, 0620, 0602, 0610, 0644, 0777};
    const char *path = in_folder("it's open");
    char remedy[512];
    snprintf(remedy, sizeof(remedy), "run: chmod 600 '%s/it'\\''s open'",
             folder_path);
    assert_null(create(path, TOW_FILE_SECRET));
    uint8_t bytes[8];
    size_t count;
    for (size_t i = 0; i < TOW_COUNT_OF(modes); i++) {
        assert_int_equal(chmod(path, modes[i]), 0);
        expect(read_secret(path, bytes, sizeof(bytes), &count),
               TOW_PERMISSION_DENIED, remedy);
    }
    assert_int_equal(chmod(path, 0400), 0);
    assert_null(read_secret(path, bytes, sizeof(bytes), &count));
}

static void what_is_no_plain_file_is_refused(void **state)
{
    uint8_t bytes[8];
    size_t count;
    const char *pipe_path = in_folder("pipe");
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    expect(read_secret(pipe_path, bytes, sizeof(bytes), &count),
           TOW_INVALID_ARGUMENT, "not a regular file");
    expect(read_secret(folder_path, bytes, sizeof(bytes), &count),
           TOW_INVALID_ARGUMENT, "not a regular file");
    expect(read_secret(in_folder("absent"), bytes, sizeof(bytes), &count),
           TOW_NOT_FOUND, "absent");
}

static void too_large_a_file_is_refused(void **state)
{
    const char *path = in_folder("three");
    assert_null(create(path, TOW_FILE_SECRET));
    uint8_t bytes[2];
    size_t count;
    expect(read_secret(path, bytes, sizeof(bytes), &count),
           TOW_INVALID_ARGUMENT, "larger than 2 bytes");
}

/* A limit on the size of files does what a full disk does. */
static void file_that_could_not_be_written_whole_is_removed(void **state)
{
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    struct rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    const char *path = in_folder("full");
    tow_status_t status = create(path, TOW_FILE_SECRET);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    expect(status, TOW_UNKNOWN, "EFBIG");
    assert_int_not_equal(access(path, F_OK), 0);
}

#define IN_FOLDER(test) \
    cmocka_unit_test_setup_teardown(test, folder_set_up, folder_tear_down)

TOW_TEST_MAIN(IN_FOLDER(created_file_reads_back_with_its_mode),
              IN_FOLDER(existing_file_is_kept),
              IN_FOLDER(dangling_link_is_not_written_through),
              IN_FOLDER(secret_open_to_others_is_refused_with_the_remedy),
              IN_FOLDER(what_is_no_plain_file_is_refused),
              IN_FOLDER(too_large_a_file_is_refused),
              IN_FOLDER(file_that_could_not_be_written_whole_is_removed))
