// RUN: not pcp-opt %s --pcp-vjp 2>&1 | filecheck %s

// A condition of more than one number is refused before any pass, at the loop.
// CHECK: while_invalid.mlir:6:8: expect condition block return a zero-ranked tensor of i1 but got 'tensor<2xi1>'
func.func @main(%x: tensor<f32>, %p: tensor<2xi1>) -> tensor<f32> {
  %r = stablehlo.while(%y = %x) : tensor<f32>
    cond {
      stablehlo.return %p : tensor<2xi1>
    } do {
      stablehlo.return %y : tensor<f32>
    }
  return %r : tensor<f32>
}
