// RUN: pcp-opt %s --pcp-import --split-input-file | filecheck %s

// torch-mlir's arange: the shape is constant, and what computed it goes.
// CHECK-LABEL: func.func @arange
// CHECK-NEXT: %[[I:.*]] = stablehlo.iota dim = 0 : tensor<4xi64>
// CHECK-NEXT: return %[[I]]
func.func @arange() -> tensor<4xi64> {
  %c = arith.constant dense<4> : tensor<1xi64>
  %0 = stablehlo.dynamic_iota %c, dim = 0 : (tensor<1xi64>) -> tensor<4xi64>
  return %0 : tensor<4xi64>
}

// -----

// CHECK-LABEL: func.func @dot
// CHECK: stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [HIGHEST, DEFAULT]
func.func @dot(%x: tensor<2x3xf32>, %y: tensor<3x4xf32>) -> tensor<2x4xf32> {
  %0 = stablehlo.dot %x, %y, precision = [HIGHEST, DEFAULT] : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}

// -----

// A convolution keeps everything but the operand that held its padding.
// CHECK-LABEL: func.func @convolution
// CHECK: stablehlo.convolution(%arg0, %arg1)
// CHECK-SAME: stride = [2]
// CHECK-SAME: pad =
// CHECK-SAME: [1, 0]
func.func @convolution(%x: tensor<1x8x2xf32>, %w: tensor<3x2x5xf32>) -> tensor<1x4x5xf32> {
  %p = stablehlo.constant dense<[[1, 0]]> : tensor<1x2xi64>
  %0 = "stablehlo.dynamic_conv"(%x, %w, %p) <{batch_group_count = 1 : i64, dimension_numbers = #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>, feature_group_count = 1 : i64, window_strides = array<i64: 2>}> : (tensor<1x8x2xf32>, tensor<3x2x5xf32>, tensor<1x2xi64>) -> tensor<1x4x5xf32>
  return %0 : tensor<1x4x5xf32>
}

// -----

// CHLO stays: it is differentiated before it is legalised.
// CHECK-LABEL: func.func @erf
// CHECK: chlo.erf
func.func @erf(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = chlo.erf %x : tensor<3xf32> -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----

// A loop's bound behind a stop of integers is a bound; what a derivative can reach stays
// stopped.
// CHECK-LABEL: func.func @stops
// CHECK-NEXT: %[[S:.+]] = "pcp.stop_gradient"(%arg0)
// CHECK-NEXT: return %[[S]], %arg1
func.func @stops(%x: tensor<4xf32>, %n: tensor<i32>) -> (tensor<4xf32>, tensor<i32>) {
  %0 = "pcp.stop_gradient"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "pcp.stop_gradient"(%n) : (tensor<i32>) -> tensor<i32>
  return %0, %1 : tensor<4xf32>, tensor<i32>
}

// -----

// JAX's approx_min_k along the first dimension: exact, of the negated rows; what the
// call compared by goes.
// CHECK-NOT: @less
// CHECK-LABEL: func.func @nearest
// CHECK: %[[N:.+]] = stablehlo.negate %arg0
// CHECK: %[[T:.+]] = stablehlo.transpose %[[N]], dims = [1, 0]
// CHECK: %[[V:.+]], %[[P:.+]] = chlo.top_k(%[[T]], k = 2)
// CHECK: %[[A:.+]] = stablehlo.negate %[[V]]
// CHECK: stablehlo.transpose %[[A]], dims = [1, 0]
// CHECK: stablehlo.transpose %[[P]], dims = [1, 0]
func.func @less(%a: tensor<f32>, %b: tensor<f32>, %i: tensor<i32>, %j: tensor<i32>) -> tensor<i1> {
  %0 = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
  return %0 : tensor<i1>
}
func.func @nearest(%x: tensor<5x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xi32>) {
  %i = stablehlo.iota dim = 0 : tensor<5x3xi32>
  %z = stablehlo.constant dense<0x7F800000> : tensor<f32>
  %c = stablehlo.constant dense<-1> : tensor<i32>
  %0:2 = stablehlo.custom_call @ApproxTopK(%x, %i, %z, %c) {called_computations = [@less], mhlo.backend_config = {aggregate_to_topk = true, reduction_dim = 0 : i64, top_k = 2 : i64}} : (tensor<5x3xf32>, tensor<5x3xi32>, tensor<f32>, tensor<i32>) -> (tensor<2x3xf32>, tensor<2x3xi32>)
  return %0#0, %0#1 : tensor<2x3xf32>, tensor<2x3xi32>
}
