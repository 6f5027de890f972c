/* Layouts: the order of the dimensions of an array in memory.
 *
 * Outside of XLA all arrays are dense and row-major. A parameter or result with
 * another layout is therefore described as the row-major array with the same
 * bytes: f32[8,128]{0,1} becomes 128 rows of 8. tow_xla_array_t.order carries
 * the order of the dimensions, here 1, 0.
 *
 * A program requests layouts in attributes of its main function, or leaves them
 * to XLA ("auto"). The conversion to HLO loses these attributes, so such a
 * program is parsed twice. */
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

/* Declared in xla/pjrt/mlir_to_hlo.h, which needs headers that the wheel does
 * not carry. */
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

/* The dimensions of `shape` from the outermost in memory to the innermost;
 * empty if row-major. */
inline std::string stored_order(const xla::Shape &shape)
{
    std::string order;
    if (is_in_order(shape)) return order;
    for (size_t i = shape.dimensions().size(); i-- > 0;)
        order.push_back(static_cast<char>(shape.layout().minor_to_major(i)));
    return order;
}

/* The dimensions of the row-major array with the same bytes as `shape`. */
inline dimensions stored_dims(const xla::Shape &shape)
{
    dimensions dims(shape.dimensions().begin(), shape.dimensions().end());
    if (is_in_order(shape)) return dims;
    const std::string order = stored_order(shape);
    for (size_t i = 0; i < order.size(); i++)
        dims[i] = shape.dimensions(order[i]);
    return dims;
}

/* The same bytes as a row-major array. */
inline xla::BorrowingLiteral as_stored(const xla::Literal &literal)
{
    return xla::BorrowingLiteral(
        static_cast<const char *>(literal.untyped_data()),
        xla::ShapeUtil::MakeShape(literal.shape().element_type(),
                                  stored_dims(literal.shape())));
}

/* --- Layouts that a program requests -------------------------------------- */

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

/* XLA chooses the layouts of all elements of a tuple, or of none: if the
 * program requests one, none is left to XLA, which would ignore that request.
 */
inline void settle_tuple(std::vector<xla::LayoutMode> &modes)
{
    size_t left_count = absl::c_count_if(modes, is_auto);
    if (left_count == modes.size()) return;
    for (xla::LayoutMode &mode : modes)
        if (is_auto(mode)) mode = xla::LayoutMode();
}

/* XLA does not check layouts. */
inline absl::Status check_layout_mode(const xla::LayoutMode &mode,
                                      const xla::Shape &shape)
{
    if (mode.mode != xla::LayoutMode::Mode::kUserSpecified)
        return absl::OkStatus();
    if (!shape.IsArray() || !mode.user_layout.has_value())
        return absl::InvalidArgumentError(absl::StrCat(
            "a layout for ", shape.ToString(), ", which is not an array"));
    const xla::Layout &layout = *mode.user_layout;
    if (layout.tiles_size() != 0 || layout.memory_space() != 0)
        return absl::UnimplementedError(absl::StrCat(
            "layout ", layout.ToString(), " for ", shape.ToString(),
            ": tiles and memory spaces are not supported"));
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
            absl::StrCat("layouts for ", modes.size(),
                         " arrays, but the program has ", shapes.size()));
    for (size_t i = 0; i < modes.size(); i++) {
        absl::Status status = check_layout_mode(modes[i], shapes[i]);
        if (!status.ok()) return status;
    }
    return absl::OkStatus();
}

/* Allows XLA to choose the layouts that neither the options nor the program
 * fix. */
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

/* Copies the layouts that the program requests into the options, unless they
 * have any. */
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
