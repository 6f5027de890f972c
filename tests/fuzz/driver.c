/* Runs a fuzz target on every file of a folder, in order of names. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

static int is_seed(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Into a block of exactly the file's size, so that sanitizers see its end. */
static int run_file(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (file == NULL) return -1;
    fseek(file, 0, SEEK_END);
    long count = ftell(file);
    rewind(file);
    uint8_t *bytes = count < 0 ? NULL : malloc((size_t)count + (count == 0));
    int result = -1;
    if (bytes != NULL && fread(bytes, 1, (size_t)count, file) == (size_t)count)
        result = LLVMFuzzerTestOneInput(bytes, (size_t)count);
    free(bytes);
    fclose(file);
    return result;
}

int main(int argc, char **argv)
{
    struct dirent **entries;
    int failed = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    int count = scandir(argv[1], &entries, is_seed, alphasort);
    if (count <= 0) {
        fprintf(stderr, "%s: no seeds in %s\n", argv[0], argv[1]);
        return 1;
    }
    printf("1..%d\n", count);
    for (int i = 0; i < count; i++) {
        int result = run_file(argv[1], entries[i]->d_name);
        failed += result != 0;
        printf("%s %d - %s\n", result == 0 ? "ok" : "not ok", i + 1,
               entries[i]->d_name);
        fflush(stdout);
        free(entries[i]);
    }
    free(entries);
    return failed != 0;
}
