// RUN: pcp-opt %s --pcp-inline-composites | filecheck %s

// Composites give way to their bodies at any depth, stops to what they stop; calls, and
// what they call, stay.
// CHECK-LABEL: func.func @main
// CHECK-NOT: composite
// CHECK: "stablehlo.case"
// CHECK: stablehlo.sine
// CHECK: stablehlo.tanh
// CHECK-NOT: composite
// CHECK: call @called
// CHECK-LABEL: func.func private @called
// CHECK: stablehlo.sine
// CHECK-NOT: @inner
// CHECK-NOT: @outer
// CHECK-NOT: pcp.custom
// CHECK-NOT: pcp.stop_gradient
module {
  func.func @main(%x: tensor<4xf32>, %i: tensor<i32>) -> tensor<4xf32> {
    %0 = "stablehlo.case"(%i) ({
      %1 = stablehlo.composite "a.outer" %x {decomposition = @outer} : (tensor<4xf32>) -> tensor<4xf32>
      stablehlo.return %1 : tensor<4xf32>
    }, {
      stablehlo.return %x : tensor<4xf32>
    }) : (tensor<i32>) -> tensor<4xf32>
    %2 = func.call @called(%0) : (tensor<4xf32>) -> tensor<4xf32>
    return %2 : tensor<4xf32>
  }
  func.func private @called(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.composite "a.inner" %x {decomposition = @inner} : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func private @outer(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.composite "a.inner" %x {decomposition = @inner} : (tensor<4xf32>) -> tensor<4xf32>
    %1 = stablehlo.tanh %0 : tensor<4xf32>
    return %1 : tensor<4xf32>
  }
  func.func private @inner(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.sine %x : tensor<4xf32>
    %1 = "pcp.stop_gradient"(%0) : (tensor<4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
  func.func private @inner_jvp(%x: tensor<4xf32>, %t: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
    %0 = stablehlo.sine %x : tensor<4xf32>
    return %0, %t : tensor<4xf32>, tensor<4xf32>
  }
  "pcp.custom_jvp"() {primal = @inner, jvp = @inner_jvp} : () -> ()
}
