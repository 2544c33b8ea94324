// RUN: pcp-opt %s --pcp-vjp --split-input-file | filecheck %s

// A windowed sum is transposed by another one over the spread cotangent.
// CHECK-LABEL: func.func @main_vjp(
// CHECK: stablehlo.pad %arg1, %{{.+}}, low = [1], high = [1], interior = [1] : (tensor<3xf32>, tensor<f32>) -> tensor<7xf32>
// CHECK: "stablehlo.reduce_window"
// CHECK-SAME: window_dimensions = array<i64: 2>
func.func @main(%x: tensor<6xf32>) -> tensor<3xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = "stablehlo.reduce_window"(%x, %zero) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {window_dimensions = array<i64: 2>, window_strides = array<i64: 2>} : (tensor<6xf32>, tensor<f32>) -> tensor<3xf32>
  return %y : tensor<3xf32>
}

// -----

// A maximum over small windows: one pass for each position in the window, without
// select_and_scatter, which IREE rejects where windows overlap.
// CHECK-LABEL: func.func @main_vjp(
// CHECK-NOT: select_and_scatter
// CHECK-COUNT-2: stablehlo.pad
// CHECK: return
func.func @main(%x: tensor<6xf32>) -> tensor<5xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %y = "stablehlo.reduce_window"(%x, %low) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.maximum %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {window_dimensions = array<i64: 2>} : (tensor<6xf32>, tensor<f32>) -> tensor<5xf32>
  return %y : tensor<5xf32>
}
