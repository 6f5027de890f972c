module @add {
  func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
    %c = stablehlo.add %a, %b : tensor<4xf32>
    return %c : tensor<4xf32>
  }
}
