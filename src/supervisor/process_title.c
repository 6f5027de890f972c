#include "supervisor/process_title.h"

#include <inttypes.h>
#include <linux/prctl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* PR_SET_MM_MAP sets the whole memory map at once and needs no privilege:
 * everything but the arguments is set to the values that the kernel reports. */
static int read_map(struct prctl_mm_map *map)
{
    char text[1024];
    FILE *file = fopen("/proc/self/stat", "re");
    if (file == NULL) return -1;
    const size_t size = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[size] = '\0';
    /* The process name may contain anything; it ends at the last bracket. */
    const char *rest = strrchr(text, ')');
    uint64_t values[64] = {0};
    enum {
        FIRST = 3, /* the first field after the name, numbered as in proc(5) */
        START_CODE = 26,
        START_DATA = 45,
        ENV_END = 51,
    };
    if (rest == NULL) return -1;
    int field = FIRST;
    for (const char *at = rest + 2; at != NULL && field <= ENV_END; field++) {
        values[field] = strtoull(at, NULL, 10);
        at = strchr(at, ' ');
        if (at != NULL) at++;
    }
    if (field <= ENV_END) return -1;
    *map = (struct prctl_mm_map){.start_code = values[START_CODE],
                                 .end_code = values[START_CODE + 1],
                                 .start_stack = values[START_CODE + 2],
                                 .start_data = values[START_DATA],
                                 .end_data = values[START_DATA + 1],
                                 .start_brk = values[START_DATA + 2],
                                 .brk = (uintptr_t)sbrk(0),
                                 .env_start = values[ENV_END - 1],
                                 .env_end = values[ENV_END],
                                 .exe_fd = UINT32_MAX};
    return 0;
}

/* The words with their final NULs, one after the other; heap memory. */
static char *join(char *const words[], size_t count, size_t *out_size)
{
    size_t size = 0, used = 0;
    for (size_t i = 0; i < count; i++)
        size += strlen(words[i]) + 1;
    char *title = malloc(size + 1);
    if (title == NULL) return NULL;
    for (size_t i = 0; i < count; i++) {
        const size_t length = strlen(words[i]) + 1;
        memcpy(title + used, words[i], length);
        used += length;
    }
    *out_size = size;
    return title;
}

static bool show(char *title, size_t size)
{
    struct prctl_mm_map map;
    if (read_map(&map) != 0) return false;
    map.arg_start = (uintptr_t)title;
    map.arg_end = (uintptr_t)title + size;
    return prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof(map), 0) == 0;
}

void tow_process_title_set(char *const words[], size_t count)
{
    /* The kernel reads it until the process ends or sets another. */
    static char *shown;
    size_t size = 0;
    char *title = join(words, count, &size);
    if (title == NULL) return;
    if (!show(title, size)) {
        free(title);
        return;
    }
    free(shown);
    shown = title;
}
