/* Layouts: in which order the dimensions of an array lie in memory.
 *
 * Everywhere outside of XLA arrays are dense and row by row. A parameter or
 * result that a program has in another order is therefore shown as the array that
 * its bytes are, row by row: f32[8,128]{0,1} is 128 rows of 8. The order, dimension
 * 1 and then 0, is told beside it, to whoever compiles for a user.
 *
 * A program asks for orders in attributes of its main function, or leaves them to
 * XLA ("auto"). They are lost on the way to HLO, so such a program is read twice. */
#ifndef TOW_DEVICE_XLA_CPU_LAYOUT_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_LAYOUT_IMPL_HH_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "mlir/IR/OwningOpRef.h"
#include "xla/debug_options_flags.h"
#include "xla/hlo/builder/xla_computation.h"
#include "xla/layout_util.h"
#include "xla/literal.h"
#include "xla/pjrt/layout_mode.h"
#include "xla/pjrt/pjrt_executable.h"
#include "xla/pjrt/utils.h"
#include "xla/shape_util.h"

/* Declared in xla/pjrt/mlir_to_hlo.h, which needs headers that the wheel does not
 * carry. */
namespace xla
{
absl::StatusOr<mlir::OwningOpRef<mlir::ModuleOp>> ParseMlirModuleString(
    std::string_view module, mlir::MLIRContext &context);
} // namespace xla

namespace tow
{

using dimensions = absl::InlinedVector<int64_t, 6>;

inline bool is_in_order(const xla::Shape &shape)
{
    return !shape.IsArray() || !shape.has_layout() ||
           xla::LayoutUtil::IsMonotonicWithDim0Major(shape.layout());
}

/* The dimensions of an array as `shape` counts them, from the outermost on in
 * memory; empty: they are in order. */
inline std::string stored_order(const xla::Shape &shape)
{
    std::string order;
    if (is_in_order(shape)) return order;
    for (size_t i = shape.dimensions().size(); i-- > 0;)
        order.push_back(static_cast<char>(shape.layout().minor_to_major(i)));
    return order;
}

/* Those of the array, row by row, that the bytes of `shape` are. */
inline dimensions stored_dims(const xla::Shape &shape)
{
    dimensions dims(shape.dimensions().begin(), shape.dimensions().end());
    if (is_in_order(shape)) return dims;
    const std::string order = stored_order(shape);
    for (size_t i = 0; i < order.size(); i++)
        dims[i] = shape.dimensions(order[i]);
    return dims;
}

/* The same bytes as what they are. */
inline xla::BorrowingLiteral as_stored(const xla::Literal &literal)
{
    return xla::BorrowingLiteral(
        static_cast<const char *>(literal.untyped_data()),
        xla::ShapeUtil::MakeShape(literal.shape().element_type(),
                                  stored_dims(literal.shape())));
}

/* --- What a program asks for ----------------------------------------------- */

struct layout_modes {
    std::vector<xla::LayoutMode> parameters;
    std::vector<xla::LayoutMode> results;
};

inline absl::StatusOr<layout_modes> read_layout_modes(absl::string_view code)
{
    mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
    auto module = xla::ParseMlirModuleString(
        std::string_view(code.data(), code.size()), context);
    if (!module.ok()) return module.status();
    auto parameters = xla::GetArgLayoutModes(module->get());
    if (!parameters.ok()) return parameters.status();
    auto results = xla::GetOutputLayoutModes(module->get());
    if (!results.ok()) return results.status();
    return layout_modes{*std::move(parameters), *std::move(results)};
}

inline bool is_auto(const xla::LayoutMode &mode)
{
    return mode.mode == xla::LayoutMode::Mode::kAuto;
}

/* XLA lays out all parts of a tuple, or none: if one is not left to it then none
 * is, for it would take no notice of what was asked for that one. */
inline void settle_tuple(std::vector<xla::LayoutMode> &modes)
{
    size_t left_count = absl::c_count_if(modes, is_auto);
    if (left_count == modes.size()) return;
    for (xla::LayoutMode &mode : modes)
        if (is_auto(mode)) mode = xla::LayoutMode();
}

/* XLA would believe anything. */
inline absl::Status check_layout_mode(const xla::LayoutMode &mode,
                                      const xla::Shape &shape)
{
    if (mode.mode != xla::LayoutMode::Mode::kUserSpecified)
        return absl::OkStatus();
    if (!shape.IsArray() || !mode.user_layout.has_value())
        return absl::InvalidArgumentError(absl::StrCat(
            "a layout for ", shape.ToString(), ", which is no array"));
    const xla::Layout &layout = *mode.user_layout;
    if (layout.tiles_size() != 0 || layout.memory_space() != 0)
        return absl::UnimplementedError(absl::StrCat(
            "layout ", layout.ToString(), " for ", shape.ToString(),
            ": devices here have no tiles and one memory"));
    xla::Shape laid_out = shape;
    *laid_out.mutable_layout() = layout;
    absl::Status status =
        xla::LayoutUtil::ValidateLayoutInShape(laid_out, false);
    if (status.ok()) return status;
    return absl::InvalidArgumentError(absl::StrCat("layout ", layout.ToString(),
                                                   " for ", shape.ToString(),
                                                   ": ", status.message()));
}

inline absl::Status check_layout_modes(
    const std::vector<xla::LayoutMode> &modes,
    const std::vector<xla::Shape> &shapes)
{
    if (modes.size() != shapes.size())
        return absl::InvalidArgumentError(
            absl::StrCat("layouts of ", modes.size(), " arrays, and there are ",
                         shapes.size()));
    for (size_t i = 0; i < modes.size(); i++) {
        absl::Status status = check_layout_mode(modes[i], shapes[i]);
        if (!status.ok()) return status;
    }
    return absl::OkStatus();
}

/* XLA lays out what neither the options nor the program do, once it is allowed to. */
inline void leave_to_xla(const layout_modes &modes,
                         xla::XlaComputation &computation,
                         xla::ExecutableBuildOptions &build)
{
    bool is_left = false;
    auto leave = [&is_left](const xla::LayoutMode &mode,
                            xla::ShapeProto *shape) {
        if (!is_auto(mode)) return;
        shape->clear_layout();
        is_left = true;
    };
    auto *program = computation.mutable_proto()->mutable_host_program_shape();
    bool is_tupled = program->parameters_size() == 1 &&
                     program->parameters(0).tuple_shapes_size() > 0;
    for (size_t i = 0; i < modes.parameters.size(); i++)
        leave(modes.parameters[i],
              is_tupled
                  ? program->mutable_parameters(0)->mutable_tuple_shapes(i)
                  : program->mutable_parameters(i));
    auto *result = program->mutable_result();
    bool is_tuple = result->element_type() == xla::TUPLE;
    for (size_t i = 0; i < modes.results.size(); i++)
        leave(modes.results[i],
              is_tuple ? result->mutable_tuple_shapes(i) : result);
    if (!is_left) return;
    if (!build.has_debug_options())
        *build.mutable_debug_options() = xla::GetDebugOptionsFromFlags();
    build.mutable_debug_options()->set_xla_pjrt_allow_auto_layout_in_hlo(true);
}

inline std::vector<xla::Shape> leaves_of(const xla::Shape &shape)
{
    if (!shape.IsTuple()) return {shape};
    return shape.tuple_shapes();
}

/* Puts what the program asks for into the options. What these say already is
 * right. */
inline absl::Status apply_layouts(absl::string_view code,
                                  xla::XlaComputation &computation,
                                  xla::CompileOptions &options)
{
    if (!absl::StrContains(code, "mhlo.layout_mode") ||
        options.argument_layouts.has_value())
        return absl::OkStatus();
    auto modes = read_layout_modes(code);
    if (!modes.ok()) return modes.status();
    auto program = computation.GetProgramShape();
    if (!program.ok()) return program.status();
    bool is_tupled =
        program->parameters_size() == 1 && program->parameters(0).IsTuple();
    settle_tuple(modes->results);
    if (is_tupled) settle_tuple(modes->parameters);
    absl::Status status = check_layout_modes(
        modes->parameters,
        is_tupled ? leaves_of(program->parameters(0)) : program->parameters());
    status.Update(
        check_layout_modes(modes->results, leaves_of(program->result())));
    if (!status.ok()) return status;
    auto shapes = xla::LayoutModesToXlaShapes(
        computation, modes->parameters, modes->results,
        std::vector<xla::MemorySpaceColor>(modes->parameters.size()),
        std::vector<xla::MemorySpaceColor>(modes->results.size()),
        [](xla::Shape shape) -> absl::StatusOr<xla::Shape> {
            return xla::LayoutUtil::GetWithDefaultLayout(shape);
        });
    if (!shapes.ok()) return shapes.status();
    options.argument_layouts = std::move(shapes->first);
    options.executable_build_options.set_result_layout(shapes->second);
    leave_to_xla(*modes, computation, options.executable_build_options);
    return absl::OkStatus();
}

} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_LAYOUT_IMPL_HH_ */
