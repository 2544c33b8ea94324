// RUN: pcp-opt %s --load %S/../../examples/extensions/softcap.py --pcp-grad=func=main \
// RUN:   | filecheck %s --check-prefix=GRAD
// RUN: pcp-opt %s --load %S/../../examples/extensions/softcap.py --lower-example \
// RUN:   | filecheck %s --check-prefix=LOWER

// The derivative is the rule's; the op stays until its own pass lowers it.

// GRAD-LABEL: func.func @main_grad
// GRAD: %[[Y:.*]] = "example.softcap"(%{{.*}}) : (tensor<4xf32>) -> tensor<4xf32>
// GRAD: %[[SHARE:.*]] = stablehlo.multiply %[[Y]], %{{.*}} : tensor<4xf32>
// GRAD: stablehlo.multiply %[[SHARE]], %[[SHARE]] : tensor<4xf32>
// GRAD-NOT: tanh

// LOWER-LABEL: func.func @main
// LOWER: stablehlo.tanh
// LOWER-NOT: example.softcap
func.func @main(%x: tensor<4xf32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "example.softcap"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0]
    : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  return %1 : tensor<f32>
}
