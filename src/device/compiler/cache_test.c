#include "base/testing.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "device/compiler/cache.h"
#include "device/compiler/compiler_impl.h"

#define EXECUTABLE "machine code"

typedef struct stage {
    char parent[64];
    char folder[96];
    tow_code_cache_t *cache;
    tow_compiled_t *compiled;
} stage_t;

static tow_compiled_t *make_compiled(void)
{
    const tow_signature_t signature = {
        .name = "f", .replica_count = 1, .partition_count = 1};
    void *packed = NULL;
    size_t size = 0;
    tow_compiled_t *compiled = NULL;
    char *code = tow_malloc(sizeof(EXECUTABLE));
    memcpy(code, EXECUTABLE, sizeof(EXECUTABLE));
    assert_null(tow_signature_pack(&signature, &packed, &size));
    assert_null(tow_compiled_make(code, sizeof(EXECUTABLE),
                                  (tow_bytes_t){packed, size}, &compiled));
    tow_free(packed);
    return compiled;
}

static tow_code_cache_t *open_cache(const char *folder, uint64_t bytes_max)
{
    tow_code_cache_t *cache = NULL;
    const tow_code_cache_options_t options = {
        .folder = folder, .plugin = "/proc/self/exe", .bytes_max = bytes_max};
    assert_null(tow_code_cache_open(&options, &cache));
    return cache;
}

static int set_up(void **state)
{
    static stage_t stage;
    snprintf(stage.parent, sizeof(stage.parent), "/tmp/tow-cache-XXXXXX");
    assert_non_null(mkdtemp(stage.parent));
    snprintf(stage.folder, sizeof(stage.folder), "%s/a/b", stage.parent);
    stage.cache = open_cache(stage.folder, 0);
    stage.compiled = make_compiled();
    *state = &stage;
    return 0;
}

static int tear_down(void **state)
{
    stage_t *stage = *state;
    char command[128];
    tow_code_cache_close(stage->cache);
    tow_compiled_destroy(stage->compiled);
    snprintf(command, sizeof(command), "rm -r %s", stage->parent);
    assert_int_equal(system(command), 0);
    return 0;
}

static tow_code_key_t key_of(const stage_t *stage, const char *program)
{
    tow_code_key_t key;
    const tow_compile_job_t job = {.program = {program, strlen(program)}};
    assert_null(tow_code_cache_key(stage->cache, &job, &key));
    return key;
}

static void path_of(const stage_t *stage, const tow_code_key_t *key,
                    char path[256])
{
    int length = snprintf(path, 256, "%s/", stage->folder);
    for (size_t i = 0; i < sizeof(key->bytes); i++)
        length += snprintf(path + length, 3, "%02x", key->bytes[i]);
}

static bool has(const stage_t *stage, const tow_code_key_t *key)
{
    tow_compiled_t *found = NULL;
    assert_null(tow_code_cache_get(stage->cache, key, &found));
    const bool is_there = found != NULL;
    tow_compiled_destroy(found);
    return is_there;
}

static void what_was_put_is_found_under_its_key(void **state)
{
    const stage_t *stage = *state;
    const tow_code_key_t one = key_of(stage, "one"), two = key_of(stage, "two");
    tow_compiled_t *found = NULL;
    assert_false(has(stage, &one));
    assert_null(tow_code_cache_put(stage->cache, &one, stage->compiled));
    assert_null(tow_code_cache_get(stage->cache, &one, &found));
    assert_non_null(found);
    assert_int_equal(found->size, sizeof(EXECUTABLE));
    assert_memory_equal(found->bytes, EXECUTABLE, sizeof(EXECUTABLE));
    assert_string_equal(found->signature.name, "f");
    tow_compiled_destroy(found);
    assert_false(has(stage, &two));
}

static void keys_differ_by_every_part(void **state)
{
    const stage_t *stage = *state;
    tow_code_key_t keys[4];
    const tow_compile_job_t jobs[] = {
        {.program = {"ab", 2}},
        {.program = {"b", 1}, .options = {"a", 1}},
        {.program = {"ab", 2}, .device_kind = "cpu"},
        {.program = {"b", 1}, .device_kind = "a"},
    };
    for (size_t i = 0; i < 4; i++) {
        assert_null(tow_code_cache_key(stage->cache, &jobs[i], &keys[i]));
        for (size_t j = 0; j < i; j++)
            assert_memory_not_equal(&keys[i], &keys[j], sizeof(keys[i]));
    }
}

/* Each is refused with an error, removed, and not found the next time. */
static void expect_refused(const stage_t *stage, const tow_code_key_t *key,
                           const char *words)
{
    tow_compiled_t *found = NULL;
    tow_status_t status = tow_code_cache_get(stage->cache, key, &found);
    assert_non_null(status);
    assert_null(found);
    assert_non_null(strstr(tow_status_message(status), words));
    tow_status_release(status);
    assert_false(has(stage, key));
}

static void files_that_are_damaged_are_refused_and_removed(void **state)
{
    const stage_t *stage = *state;
    const tow_code_key_t key = key_of(stage, "one");
    char path[256];
    struct stat info;
    path_of(stage, &key, path);
    assert_null(tow_code_cache_put(stage->cache, &key, stage->compiled));
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    for (off_t at = 0; at < info.st_size; at++) {
        assert_null(tow_code_cache_put(stage->cache, &key, stage->compiled));
        const int fd = open(path, O_RDWR);
        char byte;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        close(fd);
        expect_refused(stage, &key, "compiled program");
    }
    for (off_t size = 0; size < info.st_size; size += 7) {
        assert_null(tow_code_cache_put(stage->cache, &key, stage->compiled));
        assert_int_equal(truncate(path, size), 0);
        expect_refused(stage, &key, "compiled program");
    }
}

static void files_of_other_keys_and_links_are_refused(void **state)
{
    const stage_t *stage = *state;
    const tow_code_key_t one = key_of(stage, "one"), two = key_of(stage, "two");
    char from[256], to[256];
    path_of(stage, &one, from);
    path_of(stage, &two, to);
    assert_null(tow_code_cache_put(stage->cache, &one, stage->compiled));
    assert_int_equal(symlink(from, to), 0);
    expect_refused(stage, &two, "opening it");
    assert_int_equal(rename(from, to), 0);
    expect_refused(stage, &two, "another program");
}

static void folders_that_others_may_write_to_are_refused(void **state)
{
    const stage_t *stage = *state;
    tow_code_cache_t *cache = NULL;
    const tow_code_cache_options_t options = {.folder = stage->folder,
                                              .plugin = "/proc/self/exe"};
    assert_int_equal(chmod(stage->folder, 0770), 0);
    tow_status_t status = tow_code_cache_open(&options, &cache);
    assert_int_equal(tow_status_code(status), TOW_PERMISSION_DENIED);
    tow_status_release(status);
    assert_null(cache);
}

static void those_not_used_for_longest_go_first(void **state)
{
    stage_t *stage = *state;
    struct stat info;
    char path[256], name[16];
    const tow_code_key_t first = key_of(stage, "0");
    assert_null(tow_code_cache_put(stage->cache, &first, stage->compiled));
    path_of(stage, &first, path);
    assert_int_equal(stat(path, &info), 0);
    tow_code_cache_close(stage->cache);
    stage->cache = open_cache(stage->folder, 3 * (uint64_t)info.st_size);
    for (int i = 1; i < 4;
         i++) { /* Of different times, whatever the clock's resolution. */
        snprintf(name, sizeof(name), "%d", i);
        const tow_code_key_t key = key_of(stage, name);
        const struct timespec used[2] = {{.tv_sec = i}, {.tv_sec = i}};
        if (i == 3) assert_true(has(stage, &first)); /* used last */
        assert_null(tow_code_cache_put(stage->cache, &key, stage->compiled));
        path_of(stage, &key, path);
        assert_int_equal(utimensat(AT_FDCWD, path, used, 0), 0);
    }
    const tow_code_key_t one = key_of(stage, "1"), two = key_of(stage, "2");
    assert_false(has(stage, &one));
    assert_true(has(stage, &two));
    assert_true(has(stage, &first));
}

static void the_variable_names_the_folder_or_turns_it_off(void **state)
{
    (void)state;
    char path[256], small[8];
    setenv("TOW_COMPILE_CACHE", "off", 1);
    assert_false(tow_code_cache_folder(path, sizeof(path)));
    setenv("TOW_COMPILE_CACHE", "/some/where", 1);
    assert_true(tow_code_cache_folder(path, sizeof(path)));
    assert_string_equal(path, "/some/where");
    assert_false(tow_code_cache_folder(small, sizeof(small)));
    unsetenv("TOW_COMPILE_CACHE");
    setenv("XDG_CACHE_HOME", "/cache", 1);
    assert_true(tow_code_cache_folder(path, sizeof(path)));
    assert_string_equal(path, "/cache/towpath/compiled");
}

/* The user names the folder, which may have other files. */
static void files_of_others_are_left_alone(void **state)
{
    const stage_t *stage = *state;
    char path[512];
    snprintf(path, sizeof(path), "%s/thesis.tex", stage->folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "%65536s", "years of work");
    fclose(file);
    tow_code_cache_t *small = open_cache(stage->folder, 1000);
    for (int i = 0; i < 8; i++) {
        char program[8];
        snprintf(program, sizeof(program), "p%d", i);
        const tow_code_key_t key = key_of(stage, program);
        assert_null(tow_code_cache_put(small, &key, stage->compiled));
    }
    tow_code_cache_close(small);
    assert_int_equal(access(path, F_OK), 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

TOW_TEST_MAIN(CASE(what_was_put_is_found_under_its_key),
              CASE(keys_differ_by_every_part),
              CASE(files_that_are_damaged_are_refused_and_removed),
              CASE(files_of_other_keys_and_links_are_refused),
              CASE(folders_that_others_may_write_to_are_refused),
              CASE(those_not_used_for_longest_go_first),
              CASE(files_of_others_are_left_alone),
              CASE(the_variable_names_the_folder_or_turns_it_off))
