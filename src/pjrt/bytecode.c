#include "pjrt/bytecode.h"

#include "base/macros.h"
#include "pjrt/text_impl.h"

/* The format is MLIR's, "MLIR Bytecode Format" in its documentation. */
enum {
    SECTION_STRINGS = 0,
    SECTION_DIALECTS = 1,
    SECTION_ENTRIES = 2, /* attributes, then types */
    SECTION_OFFSETS = 3, /* their dialects and sizes */
    SECTION_COUNT_MAX = 16,
    ALIGNED = 0x80,
    PADDING = 0xcb,
    VERSION_MIN = 1, /* dialects may have versions */
    ALIGNMENT_MAX = 1 << 20,
};

static const char magic[] = {'M', 'L', '\xef', 'R'};

/* By their numbers in MLIR's builtin dialect. */
static const char *const names[] = {
    [22] = "f8E5M2",     [23] = "f8E4M3",     [24] = "f8E4M3FN",
    [25] = "f8E5M2FNUZ", [26] = "f8E4M3FNUZ", [27] = "f8E4M3B11FNUZ",
    [28] = "f8E3M4",     [29] = "f4E2M1FN",   [32] = "f8E8M0FNU",
};

/* -- Reading ----------------------------------------------------------------------- */

/* After a failure it stays failed, at its end. */
typedef struct reader {
    const uint8_t *at, *end;
    bool has_failed;
} reader_t;

static void fail(reader_t *reader)
{
    reader->has_failed = true;
    reader->at = reader->end;
}

static const uint8_t *take(reader_t *reader, uint64_t count)
{
    const uint8_t *taken = reader->at;
    if (count > (uint64_t)(reader->end - reader->at)) {
        fail(reader);
        return NULL;
    }
    reader->at += count;
    return taken;
}

/* The trailing zeros of the first byte give the number of bytes that follow. */
static uint64_t take_varint(reader_t *reader)
{
    const uint8_t *first = take(reader, 1);
    if (first == NULL) return 0;
    const size_t more = *first == 0 ? 8 : (size_t)__builtin_ctz(*first);
    if (take(reader, more) == NULL) return 0;
    uint64_t value = 0;
    const size_t skipped = *first == 0;
    for (size_t i = more + 1; i-- > skipped;)
        value = value << 8 | first[i];
    return *first == 0 ? value : value >> (more + 1);
}

typedef struct section {
    uint8_t id;
    uint64_t alignment; /* 0: none */
    tow_bytes_t data;
} section_t;

static reader_t reader_of(tow_bytes_t bytes)
{
    const uint8_t *at = bytes.data;
    return (reader_t){.at = at, .end = at + bytes.size};
}

/* `base`: alignments count from there. */
static section_t take_section(reader_t *reader, const uint8_t *base)
{
    section_t section = {0};
    const uint8_t *id = take(reader, 1);
    const uint64_t size = take_varint(reader);
    if (id == NULL || reader->has_failed) return section;
    section.id = *id & (ALIGNED - 1);
    if ((*id & ALIGNED) != 0) {
        section.alignment = take_varint(reader);
        if (section.alignment == 0 || section.alignment > ALIGNMENT_MAX) {
            fail(reader);
            return section;
        }
        while (!reader->has_failed &&
               (uint64_t)(reader->at - base) % section.alignment != 0)
            take(reader, 1);
    }
    const uint8_t *data = take(reader, size);
    section.data = (tow_bytes_t){data, data != NULL ? (size_t)size : 0};
    return section;
}

/* The sections of a program. */
typedef struct layout {
    tow_bytes_t head;
    section_t sections[SECTION_COUNT_MAX];
    size_t section_count;
} layout_t;

static bool read_layout(tow_bytes_t program, layout_t *out)
{
    reader_t reader = reader_of(program);
    const uint8_t *base = reader.at;
    const uint8_t *start = take(&reader, sizeof(magic));
    if (start == NULL || memcmp(start, magic, sizeof(magic)) != 0) return false;
    if (take_varint(&reader) < VERSION_MIN) return false;
    const uint8_t *byte;
    while ((byte = take(&reader, 1)) != NULL && *byte != '\0') {
    }
    out->head = (tow_bytes_t){base, (size_t)(reader.at - base)};
    out->section_count = 0;
    while (reader.at < reader.end && out->section_count < SECTION_COUNT_MAX)
        out->sections[out->section_count++] = take_section(&reader, base);
    return !reader.has_failed && reader.at == reader.end;
}

static section_t *find(layout_t *layout, uint8_t id)
{
    for (size_t i = 0; i < layout->section_count; i++)
        if (layout->sections[i].id == id) return &layout->sections[i];
    return NULL;
}

/* Is string `index` this one? Their sizes come first, the last one's first;
 * then the strings, each with its NUL. */
static bool is_string(tow_bytes_t strings, uint64_t index, const char *text)
{
    reader_t reader = reader_of(strings);
    const uint64_t count = take_varint(&reader);
    if (index >= count || count > strings.size) return false;
    uint64_t behind = 0, size = 0;
    for (uint64_t i = count; i-- > index;) {
        behind += size;
        size = take_varint(&reader);
    }
    if (reader.has_failed || behind > strings.size ||
        size > strings.size - behind || size != strlen(text) + 1)
        return false;
    const uint8_t *end = (const uint8_t *)strings.data + strings.size - behind;
    return memcmp(end - size, text, size) == 0;
}

/* Its number among the dialects; false: it is not there. */
static bool find_builtin(layout_t *layout, uint64_t *out_index)
{
    const section_t *dialects = find(layout, SECTION_DIALECTS);
    const section_t *strings = find(layout, SECTION_STRINGS);
    if (dialects == NULL || strings == NULL) return false;
    reader_t reader = reader_of(dialects->data);
    const uint64_t count = take_varint(&reader);
    for (uint64_t i = 0; i < count && !reader.has_failed; i++) {
        const uint64_t name = take_varint(&reader);
        if ((name & 1) != 0) take_section(&reader, dialects->data.data);
        if (!is_string(strings->data, name >> 1, "builtin")) continue;
        *out_index = i;
        return !reader.has_failed;
    }
    return false;
}

/* -- Writing ----------------------------------------------------------------------- */

static void put_mlir_varint(text_t *text, uint64_t value)
{
    uint8_t bytes[9] = {0};
    size_t count = 1;
    while (count < 9 && value >> (7 * count) != 0)
        count++;
    if (count == 9) {
        for (size_t i = 0; i < 8; i++)
            bytes[i + 1] = (uint8_t)(value >> (8 * i));
    } else {
        const uint64_t marked = (value << 1 | 1) << (count - 1);
        for (size_t i = 0; i < count; i++)
            bytes[i] = (uint8_t)(marked >> (8 * i));
    }
    put_raw(text, bytes, count);
}

static void put_section(text_t *text, const section_t *section)
{
    const uint8_t padding = PADDING;
    const uint8_t id =
        (uint8_t)(section->id | (section->alignment > 0 ? ALIGNED : 0));
    put_raw(text, &id, 1);
    put_mlir_varint(text, section->data.size);
    if (section->alignment > 0) {
        put_mlir_varint(text, section->alignment);
        while (!text->has_failed && text->size % section->alignment != 0)
            put_raw(text, &padding, 1);
    }
    put_raw(text, section->data.data, section->data.size);
}

/* -- Types ------------------------------------------------------------------------- */

/* NULL: another type. */
static const char *name_of(const uint8_t *entry, size_t size)
{
    reader_t reader = {.at = entry, .end = entry + size};
    const uint64_t number = take_varint(&reader);
    if (reader.has_failed || reader.at != reader.end ||
        number >= TOW_COUNT_OF(names))
        return NULL;
    return names[number];
}

/* The two sections, rewritten. */
typedef struct spelling {
    reader_t offsets, entries;
    text_t new_offsets, new_entries;
    uint64_t builtin;
    size_t spelled_count;
} spelling_t;

/* A group of entries of one dialect. Returns how many. */
static uint64_t spell_group(spelling_t *self, bool are_types)
{
    const uint64_t dialect = take_varint(&self->offsets);
    const uint64_t count = take_varint(&self->offsets);
    put_mlir_varint(&self->new_offsets, dialect);
    put_mlir_varint(&self->new_offsets, count);
    for (uint64_t i = 0; i < count && !self->offsets.has_failed; i++) {
        const uint64_t offset = take_varint(&self->offsets);
        const uint8_t *entry = take(&self->entries, offset >> 1);
        if (entry == NULL) break;
        const size_t size = (size_t)(offset >> 1);
        /* The low bit: not text, but the dialect's own form. */
        const char *name =
            are_types && dialect == self->builtin && (offset & 1) != 0
                ? name_of(entry, size)
                : NULL;
        if (name == NULL) {
            put_raw(&self->new_entries, entry, size);
            put_mlir_varint(&self->new_offsets, offset);
        } else {
            put_raw(&self->new_entries, name, strlen(name) + 1);
            put_mlir_varint(&self->new_offsets, (uint64_t)(strlen(name) + 1)
                                                    << 1);
            self->spelled_count++;
        }
    }
    return count;
}

static bool spell(spelling_t *self)
{
    const uint64_t attributes = take_varint(&self->offsets);
    const uint64_t types = take_varint(&self->offsets);
    put_mlir_varint(&self->new_offsets, attributes);
    put_mlir_varint(&self->new_offsets, types);
    uint64_t done = 0;
    while (done < attributes && !self->offsets.has_failed)
        done += spell_group(self, false);
    if (done != attributes) return false;
    for (done = 0; done < types && !self->offsets.has_failed;)
        done += spell_group(self, true);
    return done == types && !self->offsets.has_failed &&
           !self->entries.has_failed && self->offsets.at == self->offsets.end &&
           self->entries.at == self->entries.end && self->spelled_count > 0 &&
           !self->new_offsets.has_failed && !self->new_entries.has_failed;
}

static void *write_layout(const layout_t *layout, size_t *out_size)
{
    text_t text = {0};
    put_raw(&text, layout->head.data, layout->head.size);
    for (size_t i = 0; i < layout->section_count; i++)
        put_section(&text, &layout->sections[i]);
    *out_size = text.size;
    if (!text.has_failed) return text.bytes;
    tow_free(text.bytes);
    return NULL;
}

void *tow_bytecode_spell(tow_bytes_t program, size_t *out_size)
{
    layout_t layout;
    spelling_t self = {0};
    if (!read_layout(program, &layout) || !find_builtin(&layout, &self.builtin))
        return NULL;
    section_t *offsets = find(&layout, SECTION_OFFSETS);
    section_t *entries = find(&layout, SECTION_ENTRIES);
    if (offsets == NULL || entries == NULL) return NULL;
    self.offsets = reader_of(offsets->data);
    self.entries = reader_of(entries->data);
    void *spelled = NULL;
    if (spell(&self)) {
        offsets->data =
            (tow_bytes_t){self.new_offsets.bytes, self.new_offsets.size};
        entries->data =
            (tow_bytes_t){self.new_entries.bytes, self.new_entries.size};
        spelled = write_layout(&layout, out_size);
    }
    tow_free(self.new_offsets.bytes);
    tow_free(self.new_entries.bytes);
    return spelled;
}
