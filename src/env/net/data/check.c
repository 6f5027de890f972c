/* Invariants of the data plane and of its records. */
#include "env/net/data/data_impl.h"

void tow_data_lane_check(const tow_data_lane_t *lane)
{
    TOW_ASSERT(lane->write_count <= TOW_NET_LANE_WRITE_COUNT_MAX);
    TOW_ASSERT(lane->large_count <= TOW_NET_LANE_LARGE_COUNT_MAX);
    TOW_ASSERT(lane->whole_count <= TOW_NET_LANE_PULL_COUNT_MAX);
    TOW_ASSERT(lane->large_count + lane->whole_count + lane->shared_count <=
               lane->write_count);
    TOW_ASSERT(lane->fragment_count <= TOW_NET_LANE_WINDOW);
    TOW_ASSERT(lane->datagram_bytes <= TOW_NET_LANE_DATAGRAM_BYTES_MAX);
    TOW_ASSERT(lane->cross_read == TOW_DATA_CROSS_READ_NONE ||
               tow_data_port_is_local(lane->port));
    TOW_ASSERT(!lane->is_cut || tow_list_is_empty(&lane->busy));
}

void tow_data_inbound_check(const tow_data_inbound_t *inbound)
{
    TOW_ASSERT(inbound->partial_count <= TOW_NET_LANE_LARGE_COUNT_MAX);
    TOW_ASSERT(inbound->pull_count <= TOW_NET_LANE_PULL_COUNT_MAX);
    TOW_ASSERT((inbound->pull_count == 0) ==
               tow_list_is_empty(&inbound->pulls));
    TOW_ASSERT(inbound->arriving_count <= TOW_NET_LANE_STRIPED_COUNT_MAX);
    TOW_ASSERT((inbound->arriving_count == 0) ==
               tow_list_is_empty(&inbound->arriving));
}

void tow_data_region_check(const tow_data_region_t *region)
{
    TOW_ASSERT(region->pin_count > 0 || tow_list_is_empty(&region->pulls));
    TOW_ASSERT(region->size > 0);
}

void tow_data_port_check(const tow_data_port_t *port)
{
    TOW_ASSERT(port->is_parked == !tow_list_is_empty(&port->parked));
    TOW_ASSERT(tow_list_is_empty(&port->outbox) || port->send_count > 0);
    TOW_ASSERT(port->ep == NULL || port->ucx_address == NULL);
}

static void check_lanes(const tow_data_t *data)
{
    const tow_list_t *item = data->lanes.next;
    for (; item != &data->lanes; item = item->next) {
        const tow_data_lane_t *lane =
            TOW_CONTAINER_OF(item, const tow_data_lane_t, all);
        tow_data_lane_check(lane);
        if (lane->port != NULL) tow_data_port_check(lane->port);
    }
}

static void check_inbounds(const tow_data_t *data)
{
    uint32_t count = 0;
    const tow_list_t *item = data->inbounds.next;
    for (; item != &data->inbounds; item = item->next, count++) {
        const tow_data_inbound_t *inbound =
            TOW_CONTAINER_OF(item, const tow_data_inbound_t, all);
        tow_data_inbound_check(inbound);
        if (inbound->port != NULL) tow_data_port_check(inbound->port);
    }
    TOW_ASSERT(count == data->inbound_count);
    TOW_ASSERT(tow_map_count(&data->inbounds_by_stream) <= count);
}

void tow_data_check(const tow_data_t *data)
{
    check_lanes(data);
    check_inbounds(data);
    tow_data_views_check(data);
    TOW_ASSERT(tow_map_count(&data->regions) <= data->region_count);
    TOW_ASSERT(data->share_count <= TOW_NET_SHARE_COUNT_MAX);
}
