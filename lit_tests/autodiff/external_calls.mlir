// RUN: pcp-opt %s --pcp-vjp | filecheck %s
// RUN: pcp-opt %s --pcp-jvp | filecheck %s --check-prefix=JVP

// A function without a body may do more than return what nobody reads here: its call
// stays, unless the declaration says otherwise.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: call @logged(
// CHECK-NOT: call @pure(
// CHECK: return

// JVP-LABEL: func.func @main_jvp(
// JVP: call @logged(
// JVP-NOT: call @pure(
// JVP: return
func.func private @logged(tensor<4xf32>) -> tensor<f32>
func.func private @pure(tensor<4xf32>) -> tensor<f32> attributes {nosideeffects}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = stablehlo.sine %x : tensor<4xf32>
  %u = call @logged(%a) : (tensor<4xf32>) -> tensor<f32>
  %p = call @pure(%a) : (tensor<4xf32>) -> tensor<f32>
  return %a : tensor<4xf32>
}
