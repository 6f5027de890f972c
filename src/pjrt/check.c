/* Invariants of the plugin's records. */
#include "pjrt/plugin_impl.h"

void tow_plugin_shard_group_check(const shard_group_t *group)
{
    TOW_ASSERT(atomic_load_explicit(&group->reference_count,
                                    memory_order_relaxed) > 0);
    TOW_ASSERT(group->array != NULL && group->slice != NULL);
    TOW_ASSERT(group->generation <= group->slice->generation);
}

void tow_plugin_buffer_check(const PJRT_Buffer *buffer)
{
    TOW_ASSERT(buffer->type != NULL && buffer->ready != NULL);
    TOW_ASSERT(buffer->is_permuted == !layout_is_plain(&buffer->type->layout));
    /* A second array was assembled with the first. */
    TOW_ASSERT(buffer->other == NULL || buffer->group != NULL);
    TOW_ASSERT(buffer->group == NULL ||
               buffer->shard < buffer->group->slice->count);
    TOW_ASSERT(buffer->other == NULL ||
               buffer->other_shard < buffer->other->slice->count);
}

void tow_plugin_slice_check(const slice_entry_t *entry)
{
    TOW_ASSERT(entry->slice != NULL && entry->count > 0);
    for (size_t i = 0; i < entry->count; i++)
        TOW_ASSERT(entry->devices[i]->client == entry->devices[0]->client);
}

void tow_plugin_executable_check(const PJRT_Executable *executable)
{
    const tow_signature_t *signature = executable->signature;
    TOW_ASSERT(atomic_load_explicit(&executable->reference_count,
                                    memory_order_relaxed) > 0);
    TOW_ASSERT(executable->first != NULL && executable->function != NULL);
    TOW_ASSERT(executable->donor_count <= signature->argument_count);
    for (size_t i = 0; i < signature->result_count; i++)
        TOW_ASSERT(executable->result_types[i] != NULL);
}
