#include "device/pjrt/table.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/list.h"
#include "device/pjrt/tuning.h"

#define NS_PER_S 1000000000

typedef struct entry {
    tow_list_t list;
    size_t key_size;
    size_t value_size;
    char bytes[]; /* the key, then the value */
} entry_t;

struct tow_pjrt_table {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    /* A few per host, read once at start: a list is fast enough. */
    tow_list_t entries;
    size_t bytes_used;
    bool is_stopped;
};

tow_status_t tow_pjrt_table_create(tow_pjrt_table_t **out_table)
{
    *out_table = NULL;
    tow_pjrt_table_t *table = tow_calloc(1, sizeof(*table));
    if (table == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&table->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&table->lock, NULL);
    tow_list_init(&table->entries);
    *out_table = table;
    return TOW_OK;
}

void tow_pjrt_table_destroy(tow_pjrt_table_t *table)
{
    if (table == NULL) return;
    tow_list_t *item;
    while ((item = tow_list_pop_front(&table->entries)) != NULL)
        tow_free(TOW_CONTAINER_OF(item, entry_t, list));
    pthread_cond_destroy(&table->changed);
    pthread_mutex_destroy(&table->lock);
    tow_free(table);
}

static entry_t *find(tow_pjrt_table_t *table, const char *key, size_t key_size)
{
    for (tow_list_t *item = table->entries.next; item != &table->entries;
         item = item->next) {
        entry_t *entry = TOW_CONTAINER_OF(item, entry_t, list);
        if (entry->key_size == key_size &&
            memcmp(entry->bytes, key, key_size) == 0)
            return entry;
    }
    return NULL;
}

/* Plugins choose the keys, which may be long: messages show their beginning. */
static int shown(size_t size)
{
    return size < 128 ? (int)size : 128;
}

static tow_status_t put_locked(tow_pjrt_table_t *table, entry_t *take_entry)
{
    entry_t *entry = take_entry;
    const size_t bytes = entry->key_size + entry->value_size;
    tow_status_t status = TOW_OK;
    const entry_t *old = find(table, entry->bytes, entry->key_size);
    if (old != NULL) {
        if (old->value_size != entry->value_size ||
            memcmp(old->bytes, entry->bytes, bytes) != 0)
            status = TOW_ERROR(TOW_ALREADY_EXISTS,
                               "key '%.*s' has another value already",
                               shown(entry->key_size), entry->bytes);
    } else if (bytes > TOW_PJRT_TABLE_BYTES_MAX - table->bytes_used) {
        status = TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                           "key '%.*s': the table is full at %zu of %u bytes",
                           shown(entry->key_size), entry->bytes,
                           table->bytes_used, TOW_PJRT_TABLE_BYTES_MAX);
    } else {
        tow_list_append(&table->entries, &entry->list);
        table->bytes_used += bytes;
        return TOW_OK;
    }
    tow_free(entry);
    return status;
}

tow_status_t tow_pjrt_table_put(tow_pjrt_table_t *table, const char *key,
                                size_t key_size, const char *value,
                                size_t value_size)
{
    if (key_size > TOW_PJRT_TABLE_BYTES_MAX ||
        value_size > TOW_PJRT_TABLE_BYTES_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "key '%.*s': a value of %zu bytes; a table takes %u",
                         shown(key_size), key, value_size,
                         TOW_PJRT_TABLE_BYTES_MAX);
    entry_t *entry = tow_malloc(sizeof(*entry) + key_size + value_size);
    if (entry == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    entry->key_size = key_size;
    entry->value_size = value_size;
    if (key_size > 0) memcpy(entry->bytes, key, key_size);
    if (value_size > 0) memcpy(entry->bytes + key_size, value, value_size);
    pthread_mutex_lock(&table->lock);
    tow_status_t status = put_locked(table, entry);
    pthread_cond_broadcast(&table->changed);
    pthread_mutex_unlock(&table->lock);
    return status;
}

/* -- Getting ---------------------------------------------------------------- */

static struct timespec deadline_after(int64_t timeout_ns)
{
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += timeout_ns / NS_PER_S;
    deadline.tv_nsec += timeout_ns % NS_PER_S;
    if (deadline.tv_nsec >= NS_PER_S) {
        deadline.tv_nsec -= NS_PER_S;
        deadline.tv_sec++;
    }
    return deadline;
}

/* NULL if the key is not there in time, or the table was stopped. */
static entry_t *await_locked(tow_pjrt_table_t *table, const char *key,
                             size_t key_size, int64_t timeout_ns)
{
    entry_t *entry = find(table, key, key_size);
    if (timeout_ns <= 0) return entry;
    const struct timespec deadline = deadline_after(timeout_ns);
    while (entry == NULL && !table->is_stopped) {
        int result =
            pthread_cond_timedwait(&table->changed, &table->lock, &deadline);
        entry = find(table, key, key_size);
        if (result == ETIMEDOUT) break;
    }
    return entry;
}

static tow_status_t copy_value(const entry_t *entry, char **out_value,
                               size_t *out_size)
{
    char *value = tow_malloc(entry->value_size + 1);
    if (value == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    memcpy(value, entry->bytes + entry->key_size, entry->value_size);
    value[entry->value_size] = '\0';
    *out_value = value;
    *out_size = entry->value_size;
    return TOW_OK;
}

static tow_status_t absent(const char *key, size_t key_size, int64_t timeout_ns)
{
    if (timeout_ns <= 0)
        return TOW_ERROR(TOW_NOT_FOUND, "no key '%.*s'", shown(key_size), key);
    return TOW_ERROR(TOW_DEADLINE_EXCEEDED, "no key '%.*s' within %lld ms",
                     shown(key_size), key, (long long)(timeout_ns / 1000000));
}

tow_status_t tow_pjrt_table_get(tow_pjrt_table_t *table, const char *key,
                                size_t key_size, int64_t timeout_ns,
                                char **out_value, size_t *out_size)
{
    *out_value = NULL;
    *out_size = 0;
    pthread_mutex_lock(&table->lock);
    const entry_t *entry = await_locked(table, key, key_size, timeout_ns);
    tow_status_t status;
    if (table->is_stopped)
        status = TOW_ERROR(TOW_CANCELLED, "key '%.*s': the table was stopped",
                           shown(key_size), key);
    else if (entry == NULL)
        status = absent(key, key_size, timeout_ns);
    else
        status = copy_value(entry, out_value, out_size);
    pthread_mutex_unlock(&table->lock);
    return status;
}

void tow_pjrt_table_stop(tow_pjrt_table_t *table)
{
    pthread_mutex_lock(&table->lock);
    table->is_stopped = true;
    pthread_cond_broadcast(&table->changed);
    pthread_mutex_unlock(&table->lock);
}
