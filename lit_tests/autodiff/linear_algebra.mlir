// RUN: pcp-opt %s --pcp-vjp --split-input-file | filecheck %s

// CHECK-LABEL: func.func @main_vjp(
// CHECK: %[[X:.+]] = "stablehlo.triangular_solve"(%arg0, %arg1)
// CHECK: %[[B:.+]] = "stablehlo.triangular_solve"(%arg0, %arg2)
// CHECK-SAME: transpose_a = #stablehlo<transpose TRANSPOSE>
// CHECK: stablehlo.compare GE
// CHECK: return %[[X]], %{{.+}}, %[[B]]
func.func @main(%a: tensor<3x3xf32>, %b: tensor<3x2xf32>) -> tensor<3x2xf32> {
  %x = "stablehlo.triangular_solve"(%a, %b) {left_side = true, lower = true, unit_diagonal = false, transpose_a = #stablehlo<transpose NO_TRANSPOSE>} : (tensor<3x3xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
  return %x : tensor<3x2xf32>
}

// -----

// CHECK-LABEL: func.func @main_vjp(
// CHECK: stablehlo.fft %arg1, type = FFT, length = [8]
func.func @main(%x: tensor<8xcomplex<f32>>) -> tensor<8xcomplex<f32>> {
  %y = stablehlo.fft %x, type = FFT, length = [8] : (tensor<8xcomplex<f32>>) -> tensor<8xcomplex<f32>>
  return %y : tensor<8xcomplex<f32>>
}
