#include "device/xla_cpu/lapack/library_impl.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/xla_cpu/lapack/lapack.h"

/* Installed beside XLA by `tow setup`. */
#define LIBRARY "libscipy_openblas.so"
#define XLA     "libtensorflow_framework.so.2"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *library;
static char problem[512];
static atomic_size_t sharers = 1;

void tow_lapack_share(size_t device_count)
{
    atomic_store(&sharers, device_count > 0 ? device_count : 1);
}

/* Distributions use the plain Fortran names; the library that `tow setup`
 * installs has a prefix, so that it can coexist with them. */
static void *find(const char *name, const char *ending)
{
    char symbol[64];
    snprintf(symbol, sizeof(symbol), "scipy_%s%s", name, ending);
    void *found = dlsym(library, symbol);
    if (found != NULL) return found;
    snprintf(symbol, sizeof(symbol), "%s%s", name, ending);
    return dlsym(library, symbol);
}

/* Devices run side by side, and OpenBLAS lets only one of several callers use
 * its threads while the others wait for it. So each call gets the cores of its
 * device and no more. */
static void divide_cores(void)
{
    void (*set)(int) = (void (*)(int))find("openblas_set_num_threads", "");
    cpu_set_t ours;
    if (set == NULL || getenv("OPENBLAS_NUM_THREADS") != NULL ||
        sched_getaffinity(0, sizeof(ours), &ours) != 0)
        return;
    size_t count = (size_t)CPU_COUNT(&ours) / atomic_load(&sharers);
    set(count > 0 ? (int)count : 1);
}

/* The library named in the environment, or the one beside the loaded XLA. */
static void find_library(char *path, size_t capacity)
{
    const char *named = getenv("TOW_LAPACK_LIBRARY");
    void *xla = dlopen(XLA, RTLD_LAZY | RTLD_NOLOAD);
    struct link_map *map = NULL;
    snprintf(path, capacity, "%s", LIBRARY);
    if (named != NULL && *named != '\0')
        snprintf(path, capacity, "%s", named);
    else if (xla != NULL && dlinfo(xla, RTLD_DI_LINKMAP, &map) == 0 &&
             strrchr(map->l_name, '/') != NULL)
        snprintf(path, capacity, "%.*s/" LIBRARY,
                 (int)(strrchr(map->l_name, '/') - map->l_name), map->l_name);
    if (xla != NULL) dlclose(xla);
}

static void open_library(void)
{
    char path[PATH_MAX];
    find_library(path, sizeof(path));
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(problem, sizeof(problem),
                 "this host has no LAPACK (%s); run `tow setup` there, or name "
                 "a library with 32-bit integers in TOW_LAPACK_LIBRARY",
                 dlerror());
        return;
    }
    if (find("dgetrf", "_") == NULL) {
        snprintf(problem, sizeof(problem),
                 "%.400s is not a LAPACK: it has no dgetrf_", path);
        return;
    }
    divide_cores();
}

const char *tow_lapack_library_open(void)
{
    pthread_once(&once, open_library);
    return problem[0] != '\0' ? problem : NULL;
}

void *tow_lapack_library_find(const char *routine)
{
    return find(routine, "_");
}
