// Stands in for MLIR's header of this name, which the wheel does not carry.
// XLA's headers name mlir::ModuleOp in declarations; that it is one pointer wide
// is all they need to know.
#ifndef MLIR_IR_BUILTINOPS_H
#define MLIR_IR_BUILTINOPS_H

namespace mlir
{
class MLIRContext;
class Operation;

class ModuleOp
{
  public:
    Operation *state;
};
} // namespace mlir

#endif
