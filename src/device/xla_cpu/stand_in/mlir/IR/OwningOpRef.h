// Stands in for MLIR's header of this name and for MLIRContext.h: as much as it
// takes to read a module, look at it with XLA's functions and let go of it.
#ifndef MLIR_IR_OWNINGOPREF_H
#define MLIR_IR_OWNINGOPREF_H

#include "mlir/IR/BuiltinOps.h"

namespace mlir
{
class Operation
{
  public:
    void erase();
};

class MLIRContext
{
  public:
    enum class Threading {
        DISABLED,
        ENABLED
    };

    explicit MLIRContext(Threading threading);
    MLIRContext(const MLIRContext &) = delete;
    ~MLIRContext();

  private:
    // One pointer, and room to spare: only its own functions look at it.
    void *room[8];
};

template <typename Op> class OwningOpRef
{
  public:
    OwningOpRef(OwningOpRef &&other) : op(other.op)
    {
        other.op.state = nullptr;
    }
    ~OwningOpRef()
    {
        if (op.state != nullptr) op.state->erase();
    }

    Op get() const
    {
        return op;
    }

  private:
    Op op;
};
} // namespace mlir

#endif
