/* A hosts file parses, or gives an error of one line. No word of it can change
 * the command line that it becomes a part of. */
#include <string.h>

#include "base/assert.h"
#include "fuzz.h"
#include "supervisor/hosts_file.h"

static void check_word(const char *word)
{
    TOW_ASSERT(word[0] != '-');
    TOW_ASSERT(strpbrk(word, " \t\r\n'\"\\$`;&|<>()*?!#{}") == NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    tow_hosts_t hosts;
    tow_status_t status =
        tow_hosts_parse("hosts", (const char *)bytes, count, &hosts);
    if (status != TOW_OK) {
        TOW_ASSERT(strchr(tow_status_message(status), '\n') == NULL);
        TOW_ASSERT(hosts.items == NULL);
    }
    for (size_t i = 0; i < hosts.count; i++) {
        const tow_host_t *host = &hosts.items[i];
        check_word(host->name);
        check_word(host->ssh);
        check_word(host->tow);
        check_word(host->island);
        TOW_ASSERT(host->name[0] != '\0' && host->ssh[0] != '\0');
        TOW_ASSERT(host->worker_count >= 1 && host->port <= 65535);
    }
    tow_hosts_deinit(&hosts);
    tow_status_release(status);
    return 0;
}
