#include "supervisor/preload.h"

#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

#include "base/macros.h"
#include "device/pjrt/pjrt.h"
#include "supervisor/adapter.h"

#if TOW_HAS_PJRT

static bool has_one_thread(void)
{
    size_t count = 0;
    DIR *folder = opendir("/proc/self/task");
    if (folder == NULL) return false;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count == 1;
}

/* -- Signals while loading ------------------------------------------------ */

static const int ends[] = {SIGTERM, SIGINT, SIGHUP};
static char *const *escape_words;

/* Only exec leaves the dynamic loader safely: it and its callees may hold
 * locks. */
static void escape(int number)
{
    (void)number;
    execv("/proc/self/exe", escape_words);
    _exit(1);
}

static void set_escape(void (*handler)(int), int how)
{
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < TOW_COUNT_OF(ends); i++)
        sigaddset(&set, ends[i]);
    if (how == SIG_BLOCK) sigprocmask(how, &set, NULL);
    for (size_t i = 0; i < TOW_COUNT_OF(ends); i++)
        signal(ends[i], handler);
    if (how == SIG_UNBLOCK) sigprocmask(how, &set, NULL);
}

static tow_status_t preload(const char *path, char *const *words_if_ended)
{
    tow_adapter_quiet();
    escape_words = words_if_ended;
    set_escape(escape, SIG_UNBLOCK);
    tow_status_t status = tow_pjrt_preload(path);
    set_escape(SIG_DFL, SIG_BLOCK);
    return status;
}

bool tow_preload_xla(char *const *words_if_ended)
{
    char path[PATH_MAX];
    tow_status_t status = tow_adapter_find(path, sizeof(path));
    if (status == TOW_OK) status = preload(path, words_if_ended);
    const bool is_loaded = status == TOW_OK;
    tow_status_ignore(status, "workers fail in the same way and report it");
    return is_loaded && has_one_thread();
}

#else

bool tow_preload_xla(char *const *words_if_ended)
{
    (void)words_if_ended;
    return false;
}

#endif
