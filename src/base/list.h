/* Intrusive doubly linked lists: membership without allocation. */
#ifndef TOW_BASE_LIST_H_
#define TOW_BASE_LIST_H_

#include <stdbool.h>
#include <stddef.h>

#include "base/macros.h"

typedef struct tow_list {
    struct tow_list *next;
    struct tow_list *previous;
} tow_list_t;

static inline void tow_list_init(tow_list_t *head)
{
    head->next = head->previous = head;
}

static inline bool tow_list_is_empty(const tow_list_t *head)
{
    return head->next == head;
}

static inline void tow_list_append(tow_list_t *head, tow_list_t *item)
{
    item->previous = head->previous;
    item->next = head;
    head->previous->next = item;
    head->previous = item;
}

/* After this the item is a list of its own: removing it again is harmless. */
static inline void tow_list_remove(tow_list_t *item)
{
    item->next->previous = item->previous;
    item->previous->next = item->next;
    tow_list_init(item);
}

static inline tow_list_t *tow_list_pop_front(tow_list_t *head)
{
    if (tow_list_is_empty(head)) return NULL;
    tow_list_t *item = head->next;
    tow_list_remove(item);
    return item;
}

#endif /* TOW_BASE_LIST_H_ */
