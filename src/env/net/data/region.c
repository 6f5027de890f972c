/* Regions: our memory that peers may write to. Fragments are copied into it on
 * the loop's thread, so they stop as soon as the region is removed from the
 * table. Pulls run on copier threads, and striped writes arrive on threads: a
 * closing region waits for the chunks that they are copying. */
#include "base/alloc.h"
#include "env/net/data/data_impl.h"

static void free_region(tow_net_task_t *task)
{
    tow_data_region_t *region = TOW_CONTAINER_OF(task, tow_data_region_t, task);
    tow_data_t *data = region->data;
    const tow_closed_t closed = region->closed;
    tow_free(region);
    data->region_count--;
    if (closed.run != NULL) closed.run(closed.context);
    tow_data_check_closed(data);
}

tow_status_t tow_data_region_open(tow_env_t *env,
                                  const tow_region_options_t *options,
                                  tow_region_t **out_region)
{
    tow_data_t *data = tow_data_of(env);
    if (data->is_closing)
        return TOW_ERROR(TOW_UNAVAILABLE, "%s is closing", env->name);
    tow_data_region_t *region = tow_calloc(1, sizeof(*region));
    if (region == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    region->region.env = env;
    region->data = data;
    region->bytes = options->bytes;
    region->size = options->size;
    region->may_share = options->may_share;
    region->arrived = options->arrived;
    region->context = options->context;
    tow_list_init(&region->pulls);
    tow_list_init(&region->arriving);
    tow_net_task_init(&region->task, free_region);
    region->region.key.id = data->next_region++;
    tow_status_t status = tow_data_random(&region->region.key.secret);
    if (status == TOW_OK &&
        !tow_map_put(&data->regions, region->region.key.id, region))
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (status != TOW_OK) {
        tow_free(region);
        return status;
    }
    data->region_count++;
    *out_region = &region->region;
    return TOW_OK;
}

void tow_data_region_close(tow_region_t *base, tow_closed_t closed)
{
    tow_data_region_t *region =
        TOW_CONTAINER_OF(base, tow_data_region_t, region);
    tow_data_t *data = region->data;
    void *removed = tow_map_remove(&data->regions, base->key.id);
    TOW_ASSERT(removed == region); /* Closed once. */
    region->closed = closed;
    region->is_closing = true;
    tow_data_pulls_cancel_of_region(region);
    tow_data_arriving_cancel_of_region(region);
    if (region->pin_count == 0) tow_net_defer(data->net, &region->task);
}

void tow_data_region_release(tow_data_region_t *region)
{
    TOW_ASSERT(region->pin_count > 0);
    if (--region->pin_count == 0 && region->is_closing)
        tow_net_defer(region->data->net, &region->task);
    tow_data_region_check(region);
}

void tow_data_regions_end(tow_data_t *data)
{
    size_t cursor = 0;
    uint64_t id;
    void *value;
    while (tow_map_next(&data->regions, &cursor, &id, &value)) {
        tow_data_region_t *region = value;
        tow_data_region_close(&region->region, (tow_closed_t){0});
    }
}

tow_code_t tow_data_region_find(tow_data_t *data, const tow_data_extent_t *span,
                                tow_data_region_t **out_region)
{
    tow_data_region_t *region = tow_map_find(&data->regions, span->region);
    if (region == NULL) return TOW_NOT_FOUND;
    if (region->region.key.secret != span->secret) return TOW_PERMISSION_DENIED;
    if (!tow_data_fits(span, region->size)) return TOW_OUT_OF_RANGE;
    *out_region = region;
    return TOW_CODE_OK;
}
