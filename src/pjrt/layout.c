/* Layouts: the order of a shard's dimensions in memory, JAX's Layout.
 *
 * Arrays of the cluster are dense and row-major, and have no layout. A shard
 * of f32[8,128] with dimension 1 outermost is an array of 128 rows of 8 there.
 * The compiler states this in the signature, and only this plugin, between the
 * user and the cluster, translates. */
#include <stdio.h>
#include <string.h>

#include "pjrt/plugin_impl.h"

bool tow_plugin_layout_equal(const layout_t *a, const layout_t *b)
{
    return a->rank == b->rank && memcmp(a->minor_to_major, b->minor_to_major,
                                        a->rank * sizeof(int64_t)) == 0;
}

const int64_t *tow_plugin_layout_minor_to_major(const layout_t *layout,
                                                size_t rank)
{
    static const int64_t falling[] = {
        31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16,
        15, 14, 13, 12, 11, 10, 9,  8,  7,  6,  5,  4,  3,  2,  1,  0};
    _Static_assert(TOW_COUNT_OF(falling) == TOW_RANK_MAX, "one a dimension");
    return layout_is_plain(layout) ? falling + (TOW_RANK_MAX - rank)
                                   : layout->minor_to_major;
}

void tow_plugin_layout_order(const layout_t *layout, uint32_t rank,
                             uint8_t *out_order)
{
    const int64_t *minor_to_major =
        tow_plugin_layout_minor_to_major(layout, rank);
    for (uint32_t i = 0; i < rank; i++)
        out_order[i] = (uint8_t)minor_to_major[rank - 1 - i];
}

tow_shape_t tow_plugin_layout_stored_shape(const layout_t *layout,
                                           const tow_shape_t *shape)
{
    tow_shape_t stored = *shape;
    for (uint32_t i = 0; i < layout->rank; i++)
        stored.dims[i] =
            shape->dims[layout->minor_to_major[layout->rank - 1 - i]];
    return stored;
}

/* -- Layouts of arguments and results -------------------------------------- */

layout_t tow_plugin_layout_of(const tow_array_info_t *array)
{
    const uint8_t *order = array->order.data;
    layout_t layout;
    layout.rank = (uint32_t)array->order.size;
    for (uint32_t i = 0; i < layout.rank; i++)
        layout.minor_to_major[i] = order[layout.rank - 1 - i];
    return layout;
}

tow_shape_t tow_plugin_layout_program_shape(const tow_array_info_t *array)
{
    const uint8_t *order = array->order.data;
    tow_shape_t shape = array->shape;
    for (uint32_t i = 0; i < array->order.size; i++)
        shape.dims[order[i]] = array->shape.dims[i];
    return shape;
}

tow_status_t tow_plugin_check_layout(const PJRT_Executable *executable,
                                     const PJRT_Buffer *buffer, size_t argument)
{
    const layout_t wanted =
        tow_plugin_layout_of(&executable->signature->arguments[argument]);
    if (tow_plugin_layout_equal(&wanted, &buffer->type->layout)) return TOW_OK;
    return TOW_ERROR(
        TOW_INVALID_ARGUMENT,
        "argument %zu of %s has a layout that differs from the one "
        "it was compiled for: device_put it to that format",
        argument, executable->signature->name);
}

/* -- Layouts from callers -------------------------------------------------- */

/* A row-major layout is represented as none. */
static layout_t simplest(const layout_t *layout)
{
    for (uint32_t i = 0; i < layout->rank; i++)
        if (layout->minor_to_major[i] != layout->rank - 1 - i) return *layout;
    return (layout_t){.rank = 0};
}

static tow_status_t read_tiled(const PJRT_Buffer_MemoryLayout_Tiled *tiled,
                               const tow_shape_t *shape, layout_t *out_layout)
{
    if (tiled->num_tiles != 0)
        return TOW_ERROR(TOW_UNIMPLEMENTED, "towpath does not have layouts "
                                            "with tiles");
    uint32_t named = 0;
    layout_t layout = {.rank = shape->rank};
    for (size_t i = 0; i < tiled->minor_to_major_size && i < shape->rank; i++) {
        layout.minor_to_major[i] = tiled->minor_to_major[i];
        if (tiled->minor_to_major[i] >= 0 &&
            tiled->minor_to_major[i] < (int64_t)shape->rank)
            named |= 1u << tiled->minor_to_major[i];
    }
    if (tiled->minor_to_major_size != shape->rank ||
        (uint32_t)__builtin_popcount(named) != shape->rank)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a layout that does not name each of %u dimensions "
                         "once",
                         shape->rank);
    *out_layout = simplest(&layout);
    return TOW_OK;
}

size_t tow_plugin_element_bytes(const tow_shape_t *shape)
{
    const tow_shape_t scalar = {.type = shape->type};
    uint64_t bytes = 0;
    tow_status_ignore(tow_shape_bytes(&scalar, &bytes), "then it has none");
    return bytes;
}

/* The dimension, not in `named` yet, with this stride; dimensions of at most
 * one element match any. UINT32_MAX: none. */
static uint32_t find_stride(const PJRT_Buffer_MemoryLayout_Strides *strides,
                            const tow_shape_t *shape, uint32_t named,
                            int64_t stride)
{
    for (uint32_t i = shape->rank; i-- > 0;)
        if ((named >> i & 1) == 0 && (shape->dims[i] <= 1 || stride == 0 ||
                                      strides->byte_strides[i] == stride))
            return i;
    return UINT32_MAX;
}

static tow_status_t read_strides(
    const PJRT_Buffer_MemoryLayout_Strides *strides, const tow_shape_t *shape,
    layout_t *out_layout)
{
    int64_t stride = (int64_t)tow_plugin_element_bytes(shape);
    uint32_t named = 0;
    layout_t layout = {.rank = shape->rank};
    bool is_dense = strides->num_byte_strides == shape->rank;
    for (uint32_t i = 0; is_dense && i < shape->rank; i++) {
        const uint32_t found = find_stride(strides, shape, named, stride);
        is_dense = found != UINT32_MAX;
        if (!is_dense) break;
        named |= 1u << found;
        layout.minor_to_major[i] = found;
        stride *= shape->dims[found];
    }
    if (!is_dense)
        return TOW_ERROR(TOW_UNIMPLEMENTED,
                         "towpath does not have layouts with gaps");
    *out_layout = simplest(&layout);
    return TOW_OK;
}

tow_status_t tow_plugin_layout_read(const PJRT_Buffer_MemoryLayout *given,
                                    const tow_shape_t *shape,
                                    layout_t *out_layout)
{
    out_layout->rank = 0;
    if (given == NULL) return TOW_OK;
    return given->type == PJRT_Buffer_MemoryLayout_Type_Tiled
               ? read_tiled(&given->tiled, shape, out_layout)
               : read_strides(&given->strides, shape, out_layout);
}

/* -- The extension ------------------------------------------------------------------ */

/* As XLA writes it, "{0,1}", innermost dimension first: two digits and a comma
 * each. */
struct PJRT_Layouts_MemoryLayout {
    size_t size;
    char text[3 * TOW_RANK_MAX + 3];
};

struct PJRT_Layouts_SerializedLayout {
    PJRT_Layouts_MemoryLayout layout;
};

/* Added by minor version 93 of the interface, which is newer than our header.
 */
typedef struct parameter_layouts_args {
    size_t struct_size;
    PJRT_Extension_Base *extension_start;
    PJRT_Executable *executable;
    size_t count;                        /* out */
    PJRT_Layouts_MemoryLayout **layouts; /* out: owned by the executable */
} parameter_layouts_args_t;

typedef struct layouts_extension {
    PJRT_Layouts_Extension known;
    PJRT_Error *(*parameter_layouts)(parameter_layouts_args_t *args);
} layouts_extension_t;

static void write_layout(const layout_t *layout, size_t rank,
                         PJRT_Layouts_MemoryLayout *out)
{
    const int64_t *minor_to_major =
        tow_plugin_layout_minor_to_major(layout, rank);
    size_t used = 0;
    out->text[used++] = '{';
    for (size_t i = 0; i < rank; i++)
        used +=
            (size_t)snprintf(out->text + used, sizeof(out->text) - used, "%s%d",
                             i > 0 ? "," : "", (int)minor_to_major[i]);
    out->text[used++] = '}';
    out->text[used] = '\0';
    out->size = used;
}

bool tow_plugin_fill_layouts(PJRT_Executable *executable)
{
    const tow_signature_t *signature = executable->signature;
    const size_t results = signature->result_count;
    const size_t count = results + signature->argument_count;
    executable->layouts = tow_calloc(count + 1, sizeof(*executable->layouts));
    executable->layout_list =
        tow_calloc(count + 1, sizeof(*executable->layout_list));
    if (executable->layouts == NULL || executable->layout_list == NULL)
        return false;
    for (size_t i = 0; i < count; i++) {
        const tow_array_info_t *array =
            i < results ? &signature->results[i]
                        : &signature->arguments[i - results];
        const layout_t layout = tow_plugin_layout_of(array);
        write_layout(&layout, array->shape.rank, &executable->layouts[i]);
        executable->layout_list[i] = &executable->layouts[i];
        if (i >= results && !layout_is_plain(&layout))
            executable->has_permuted_arguments = true;
    }
    return true;
}

static PJRT_Error *result_layouts(
    PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args *args)
{
    args->num_outputs = args->executable->signature->result_count;
    args->layouts = args->executable->layout_list;
    return NULL;
}

static PJRT_Error *parameter_layouts(parameter_layouts_args_t *args)
{
    const PJRT_Executable *executable = args->executable;
    args->count = executable->signature->argument_count;
    args->layouts =
        executable->layout_list + executable->signature->result_count;
    return NULL;
}

static PJRT_Error *hand_out(const layout_t *layout, size_t rank,
                            PJRT_Layouts_MemoryLayout **out)
{
    *out = tow_malloc(sizeof(**out));
    if (*out == NULL)
        return take_error(tow_status_bare(TOW_RESOURCE_EXHAUSTED));
    write_layout(layout, rank, *out);
    return NULL;
}

static PJRT_Error *buffer_layout(
    PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args *args)
{
    const shard_type_t *type = args->buffer->type;
    return hand_out(&type->layout, type->shape.rank, &args->layout);
}

static PJRT_Error *default_layout(
    PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args *args)
{
    if (args->num_dims > TOW_RANK_MAX)
        return take_error(TOW_ERROR(TOW_INVALID_ARGUMENT,
                                    "an array of %zu dimensions: at most %d",
                                    args->num_dims, TOW_RANK_MAX));
    return hand_out(&(layout_t){.rank = 0}, args->num_dims, &args->layout);
}

static PJRT_Error *topology_layout(
    PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args *args)
{
    return tow_plugin_unimplemented("topologies without devices");
}

static PJRT_Error *layout_destroy(PJRT_Layouts_MemoryLayout_Destroy_Args *args)
{
    tow_free(args->layout);
    return NULL;
}

static void free_serialized(PJRT_Layouts_SerializedLayout *serialized)
{
    tow_free(serialized);
}

static PJRT_Error *layout_serialize(
    PJRT_Layouts_MemoryLayout_Serialize_Args *args)
{
    PJRT_Layouts_SerializedLayout *serialized = tow_malloc(sizeof(*serialized));
    if (serialized == NULL)
        return take_error(tow_status_bare(TOW_RESOURCE_EXHAUSTED));
    serialized->layout = *args->layout;
    args->serialized_bytes = serialized->layout.text;
    args->serialized_bytes_size = serialized->layout.size;
    args->serialized_layout = serialized;
    args->serialized_layout_deleter = free_serialized;
    return NULL;
}

PJRT_Extension_Base *tow_plugin_layouts_extension(PJRT_Extension_Base *next)
{
    static layouts_extension_t extension = {
        .known = {.base = {.struct_size = sizeof(layouts_extension_t),
                           .type = PJRT_Extension_Type_Layouts},
                  .PJRT_Layouts_MemoryLayout_Destroy = layout_destroy,
                  .PJRT_Layouts_MemoryLayout_Serialize = layout_serialize,
                  .PJRT_Layouts_PJRT_Client_GetDefaultLayout = default_layout,
                  .PJRT_Layouts_PJRT_Buffer_MemoryLayout = buffer_layout,
                  .PJRT_Layouts_PJRT_Topology_GetDefaultLayout =
                      topology_layout,
                  .PJRT_Layouts_PJRT_Executable_GetOutputLayouts =
                      result_layouts},
        .parameter_layouts = parameter_layouts};
    extension.known.base.next = next;
    return &extension.known.base;
}
