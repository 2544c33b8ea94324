// RUN: pcp-opt %s --pcp-legalize --split-input-file | filecheck %s

// Panels of 16 columns, each made column by column.
// CHECK-LABEL: func.func @cholesky
// CHECK-NOT: stablehlo.cholesky
// CHECK: stablehlo.while
// CHECK: stablehlo.constant dense<4> : tensor<i32>
// CHECK: stablehlo.dot_general
// CHECK: stablehlo.while
// CHECK: stablehlo.constant dense<16> : tensor<i32>
// CHECK: stablehlo.sqrt
// CHECK-NOT: stablehlo.while
// CHECK: stablehlo.constant dense<0x7FC00000> : tensor<1x64x64xf32>
// CHECK: return
func.func @cholesky(%a: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %0 = stablehlo.cholesky %a, lower = true : tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}

// -----

// The blocks on the diagonal are inverted at once, then used one by one.
// CHECK-LABEL: func.func @solve
// CHECK-NOT: stablehlo.triangular_solve
// CHECK: stablehlo.reshape %{{.*}} : (tensor<1x2x32x32xf32>) -> tensor<2x32x32xf32>
// CHECK: stablehlo.while
// CHECK: stablehlo.while
// CHECK-COUNT-2: stablehlo.dot_general
// CHECK-NOT: stablehlo.while
// CHECK: return
func.func @solve(%a: tensor<64x64xf32>, %b: tensor<64x3xf32>) -> tensor<64x3xf32> {
  %0 = "stablehlo.triangular_solve"(%a, %b) <{left_side = true, lower = true, unit_diagonal = false, transpose_a = #stablehlo<transpose NO_TRANSPOSE>}> : (tensor<64x64xf32>, tensor<64x3xf32>) -> tensor<64x3xf32>
  return %0 : tensor<64x3xf32>
}

// -----

// A small upper system is a lower one read backwards, and needs no blocks.
// CHECK-LABEL: func.func @upper
// CHECK: stablehlo.reverse %{{.*}}, dims = [1, 2]
// CHECK: stablehlo.reverse %{{.*}}, dims = [1]
// CHECK: stablehlo.while
// CHECK-NOT: stablehlo.while
// CHECK: stablehlo.reverse %{{.*}}, dims = [1]
// CHECK: return
func.func @upper(%a: tensor<4x4xf32>, %b: tensor<4x3xf32>) -> tensor<4x3xf32> {
  %0 = "stablehlo.triangular_solve"(%a, %b) <{left_side = true, lower = false, unit_diagonal = false, transpose_a = #stablehlo<transpose NO_TRANSPOSE>}> : (tensor<4x4xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}
