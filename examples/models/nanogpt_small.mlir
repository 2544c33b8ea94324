module {
  func.func @main(%arg0: tensor<256x64xf32> {pcp.init = "normal(0.0199)", pcp.name = "token.weight", pcp.role = "param"}, %arg1: tensor<32x64xf32> {pcp.init = "normal(0.02)", pcp.name = "position.weight", pcp.role = "param"}, %arg2: tensor<64xf32> {pcp.init = "ones", pcp.name = "blocks.0.norm1.weight", pcp.role = "param"}, %arg3: tensor<64xf32> {pcp.init = "zeros", pcp.name = "blocks.0.norm1.bias", pcp.role = "param"}, %arg4: tensor<192x64xf32> {pcp.init = "normal(0.0201)", pcp.name = "blocks.0.attention.qkv.weight", pcp.role = "param"}, %arg5: tensor<64x64xf32> {pcp.init = "normal(0.02)", pcp.name = "blocks.0.attention.projection.weight", pcp.role = "param"}, %arg6: tensor<64xf32> {pcp.init = "ones", pcp.name = "blocks.0.norm2.weight", pcp.role = "param"}, %arg7: tensor<64xf32> {pcp.init = "zeros", pcp.name = "blocks.0.norm2.bias", pcp.role = "param"}, %arg8: tensor<256x64xf32> {pcp.init = "normal(0.0199)", pcp.name = "blocks.0.up.weight", pcp.role = "param"}, %arg9: tensor<256xf32> {pcp.init = "zeros", pcp.name = "blocks.0.up.bias", pcp.role = "param"}, %arg10: tensor<64x256xf32> {pcp.init = "normal(0.02)", pcp.name = "blocks.0.down.weight", pcp.role = "param"}, %arg11: tensor<64xf32> {pcp.init = "zeros", pcp.name = "blocks.0.down.bias", pcp.role = "param"}, %arg12: tensor<64xf32> {pcp.init = "ones", pcp.name = "blocks.1.norm1.weight", pcp.role = "param"}, %arg13: tensor<64xf32> {pcp.init = "zeros", pcp.name = "blocks.1.norm1.bias", pcp.role = "param"}, %arg14: tensor<192x64xf32> {pcp.init = "normal(0.0201)", pcp.name = "blocks.1.attention.qkv.weight", pcp.role = "param"}, %arg15: tensor<64x64xf32> {pcp.init = "normal(0.0202)", pcp.name = "blocks.1.attention.projection.weight", pcp.role = "param"}, %arg16: tensor<64xf32> {pcp.init = "ones", pcp.name = "blocks.1.norm2.weight", pcp.role = "param"}, %arg17: tensor<64xf32> {pcp.init = "zeros", pcp.name = "blocks.1.norm2.bias", pcp.role = "param"}, %arg18: tensor<256x64xf32> {pcp.init = "normal(0.02)", pcp.name = "blocks.1.up.weight", pcp.role = "param"}, %arg19: tensor<256xf32> {pcp.init = "zeros", pcp.name = "blocks.1.up.bias", pcp.role = "param"}, %arg20: tensor<64x256xf32> {pcp.init = "normal(0.02)", pcp.name = "blocks.1.down.weight", pcp.role = "param"}, %arg21: tensor<64xf32> {pcp.init = "zeros", pcp.name = "blocks.1.down.bias", pcp.role = "param"}, %arg22: tensor<64xf32> {pcp.init = "ones", pcp.name = "norm.weight", pcp.role = "param"}, %arg23: tensor<64xf32> {pcp.init = "zeros", pcp.name = "norm.bias", pcp.role = "param"}, %arg24: tensor<256x64xf32> {pcp.init = "normal(0.0199)", pcp.name = "head.weight", pcp.role = "param"}, %arg25: tensor<64x32xi64> {pcp.name = "ids", pcp.role = "data"}, %arg26: tensor<64x32xi64> {pcp.name = "targets", pcp.role = "data"}) -> tensor<f32> {
    %c = stablehlo.constant dense<0> : tensor<2048xi64>
    %c_0 = stablehlo.constant dense<-100> : tensor<2048xi64>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %c_1 = stablehlo.constant dense<0> : tensor<i64>
    %cst_2 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<64x32x256xf32>
    %0 = "stablehlo.gather"(%arg0, %arg25) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 64>}> : (tensor<256x64xf32>, tensor<64x32xi64>) -> tensor<64x32x64xf32>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [1, 2] : (tensor<32x64xf32>) -> tensor<64x32x64xf32>
    %2 = stablehlo.add %0, %1 : tensor<64x32x64xf32>
    %3 = stablehlo.reduce(%2 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<64x32x64xf32>, tensor<f32>) -> tensor<64x32xf32>
    %4 = stablehlo.reshape %3 : (tensor<64x32xf32>) -> tensor<64x32x1xf32>
    %cst_4 = stablehlo.constant dense<6.400000e+01> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<64x32x1xf32>
    %6 = stablehlo.divide %4, %5 : tensor<64x32x1xf32>
    %7 = stablehlo.broadcast_in_dim %6, dims = [0, 1, 2] : (tensor<64x32x1xf32>) -> tensor<64x32x64xf32>
    %8 = stablehlo.subtract %2, %7 : tensor<64x32x64xf32>
    %9 = stablehlo.multiply %8, %8 : tensor<64x32x64xf32>
    %10 = stablehlo.reduce(%9 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<64x32x64xf32>, tensor<f32>) -> tensor<64x32xf32>
    %11 = stablehlo.reshape %10 : (tensor<64x32xf32>) -> tensor<64x32x1xf32>
    %12 = stablehlo.divide %11, %5 : tensor<64x32x1xf32>
    %cst_5 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %13 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<64x32x1xf32>
    %14 = stablehlo.add %12, %13 : tensor<64x32x1xf32>
    %15 = stablehlo.rsqrt %14 : tensor<64x32x1xf32>
    %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1, 2] : (tensor<64x32x1xf32>) -> tensor<64x32x64xf32>
    %17 = stablehlo.multiply %8, %16 : tensor<64x32x64xf32>
    %18 = stablehlo.broadcast_in_dim %arg2, dims = [2] : (tensor<64xf32>) -> tensor<64x32x64xf32>
    %19 = stablehlo.multiply %17, %18 : tensor<64x32x64xf32>
    %20 = stablehlo.broadcast_in_dim %arg3, dims = [2] : (tensor<64xf32>) -> tensor<64x32x64xf32>
    %21 = stablehlo.add %19, %20 : tensor<64x32x64xf32>
    %22 = stablehlo.transpose %arg4, dims = [1, 0] : (tensor<192x64xf32>) -> tensor<64x192xf32>
    %23 = stablehlo.reshape %21 : (tensor<64x32x64xf32>) -> tensor<2048x64xf32>
    %24 = stablehlo.dot_general %23, %22, contracting_dims = [1] x [0] : (tensor<2048x64xf32>, tensor<64x192xf32>) -> tensor<2048x192xf32>
    %25 = stablehlo.reshape %24 : (tensor<2048x192xf32>) -> tensor<64x32x192xf32>
    %26 = stablehlo.slice %25 [0:64, 0:32, 0:64] : (tensor<64x32x192xf32>) -> tensor<64x32x64xf32>
    %27 = stablehlo.slice %25 [0:64, 0:32, 64:128] : (tensor<64x32x192xf32>) -> tensor<64x32x64xf32>
    %28 = stablehlo.slice %25 [0:64, 0:32, 128:192] : (tensor<64x32x192xf32>) -> tensor<64x32x64xf32>
    %29 = stablehlo.reshape %26 : (tensor<64x32x64xf32>) -> tensor<64x32x4x16xf32>
    %30 = stablehlo.transpose %29, dims = [0, 2, 1, 3] : (tensor<64x32x4x16xf32>) -> tensor<64x4x32x16xf32>
    %31 = stablehlo.reshape %27 : (tensor<64x32x64xf32>) -> tensor<64x32x4x16xf32>
    %32 = stablehlo.transpose %31, dims = [0, 2, 1, 3] : (tensor<64x32x4x16xf32>) -> tensor<64x4x32x16xf32>
    %33 = stablehlo.reshape %28 : (tensor<64x32x64xf32>) -> tensor<64x32x4x16xf32>
    %34 = stablehlo.transpose %33, dims = [0, 2, 1, 3] : (tensor<64x32x4x16xf32>) -> tensor<64x4x32x16xf32>
    %35 = stablehlo.transpose %32, dims = [0, 1, 3, 2] : (tensor<64x4x32x16xf32>) -> tensor<64x4x16x32xf32>
    %36 = stablehlo.reshape %30 : (tensor<64x4x32x16xf32>) -> tensor<256x32x16xf32>
    %37 = stablehlo.reshape %35 : (tensor<64x4x16x32xf32>) -> tensor<256x16x32xf32>
    %38 = stablehlo.broadcast_in_dim %37, dims = [0, 1, 2] : (tensor<256x16x32xf32>) -> tensor<256x16x32xf32>
    %39 = stablehlo.dot_general %36, %38, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<256x32x16xf32>, tensor<256x16x32xf32>) -> tensor<256x32x32xf32>
    %40 = stablehlo.reshape %39 : (tensor<256x32x32xf32>) -> tensor<64x4x32x32xf32>
    %cst_6 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %41 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<64x4x32x32xf32>
    %42 = stablehlo.divide %40, %41 : tensor<64x4x32x32xf32>
    %c_7 = stablehlo.constant dense<"0x00010101010101010101010101010101010101010101010101010101010101010000010101010101010101010101010101010101010101010101010101010101000000010101010101010101010101010101010101010101010101010101010100000000010101010101010101010101010101010101010101010101010101010000000000010101010101010101010101010101010101010101010101010101000000000000010101010101010101010101010101010101010101010101010100000000000000010101010101010101010101010101010101010101010101010000000000000000010101010101010101010101010101010101010101010101000000000000000000010101010101010101010101010101010101010101010100000000000000000000010101010101010101010101010101010101010101010000000000000000000000010101010101010101010101010101010101010101000000000000000000000000010101010101010101010101010101010101010100000000000000000000000000010101010101010101010101010101010101010000000000000000000000000000010101010101010101010101010101010101000000000000000000000000000000010101010101010101010101010101010100000000000000000000000000000000010101010101010101010101010101010000000000000000000000000000000000010101010101010101010101010101000000000000000000000000000000000000010101010101010101010101010100000000000000000000000000000000000000010101010101010101010101010000000000000000000000000000000000000000010101010101010101010101000000000000000000000000000000000000000000010101010101010101010100000000000000000000000000000000000000000000010101010101010101010000000000000000000000000000000000000000000000010101010101010101000000000000000000000000000000000000000000000000010101010101010100000000000000000000000000000000000000000000000000010101010101010000000000000000000000000000000000000000000000000000010101010101000000000000000000000000000000000000000000000000000000010101010100000000000000000000000000000000000000000000000000000000010101010000000000000000000000000000000000000000000000000000000000010101000000000000000000000000000000000000000000000000000000000000010100000000000000000000000000000000000000000000000000000000000000010000000000000000000000000000000000000000000000000000000000000000"> : tensor<1x1x32x32xi1>
    %43 = stablehlo.broadcast_in_dim %c_7, dims = [0, 1, 2, 3] : (tensor<1x1x32x32xi1>) -> tensor<64x4x32x32xi1>
    %44 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<64x4x32x32xf32>
    %45 = stablehlo.broadcast_in_dim %42, dims = [0, 1, 2, 3] : (tensor<64x4x32x32xf32>) -> tensor<64x4x32x32xf32>
    %46 = stablehlo.select %43, %44, %45 : tensor<64x4x32x32xi1>, tensor<64x4x32x32xf32>
    %47 = stablehlo.reduce(%46 init: %cst_2) applies stablehlo.maximum across dimensions = [3] : (tensor<64x4x32x32xf32>, tensor<f32>) -> tensor<64x4x32xf32>
    %48 = stablehlo.reshape %47 : (tensor<64x4x32xf32>) -> tensor<64x4x32x1xf32>
    %49 = stablehlo.broadcast_in_dim %48, dims = [0, 1, 2, 3] : (tensor<64x4x32x1xf32>) -> tensor<64x4x32x32xf32>
    %50 = stablehlo.subtract %46, %49 : tensor<64x4x32x32xf32>
    %51 = stablehlo.exponential %50 : tensor<64x4x32x32xf32>
    %52 = stablehlo.reduce(%51 init: %cst) applies stablehlo.add across dimensions = [3] : (tensor<64x4x32x32xf32>, tensor<f32>) -> tensor<64x4x32xf32>
    %53 = stablehlo.reshape %52 : (tensor<64x4x32xf32>) -> tensor<64x4x32x1xf32>
    %54 = stablehlo.broadcast_in_dim %53, dims = [0, 1, 2, 3] : (tensor<64x4x32x1xf32>) -> tensor<64x4x32x32xf32>
    %55 = stablehlo.divide %51, %54 : tensor<64x4x32x32xf32>
    %56 = stablehlo.reshape %55 : (tensor<64x4x32x32xf32>) -> tensor<256x32x32xf32>
    %57 = stablehlo.reshape %34 : (tensor<64x4x32x16xf32>) -> tensor<256x32x16xf32>
    %58 = stablehlo.broadcast_in_dim %57, dims = [0, 1, 2] : (tensor<256x32x16xf32>) -> tensor<256x32x16xf32>
    %59 = stablehlo.dot_general %56, %58, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<256x32x32xf32>, tensor<256x32x16xf32>) -> tensor<256x32x16xf32>
    %60 = stablehlo.reshape %59 : (tensor<256x32x16xf32>) -> tensor<64x4x32x16xf32>
    %61 = stablehlo.transpose %60, dims = [0, 2, 1, 3] : (tensor<64x4x32x16xf32>) -> tensor<64x32x4x16xf32>
    %62 = stablehlo.reshape %61 : (tensor<64x32x4x16xf32>) -> tensor<64x32x64xf32>
    %63 = stablehlo.transpose %arg5, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
    %64 = stablehlo.reshape %62 : (tensor<64x32x64xf32>) -> tensor<2048x64xf32>
    %65 = stablehlo.dot_general %64, %63, contracting_dims = [1] x [0] : (tensor<2048x64xf32>, tensor<64x64xf32>) -> tensor<2048x64xf32>
    %66 = stablehlo.reshape %65 : (tensor<2048x64xf32>) -> tensor<64x32x64xf32>
    %67 = stablehlo.add %2, %66 : tensor<64x32x64xf32>
    %68 = stablehlo.reduce(%67 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<64x32x64xf32>, tensor<f32>) -> tensor<64x32xf32>
    %69 = stablehlo.reshape %68 : (tensor<64x32xf32>) -> tensor<64x32x1xf32>
    %70 = stablehlo.divide %69, %5 : tensor<64x32x1xf32>
    %71 = stablehlo.broadcast_in_dim %70, dims = [0, 1, 2] : (tensor<64x32x1xf32>) -> tensor<64x32x64xf32>
    %72 = stablehlo.subtract %67, %71 : tensor<64x32x64xf32>
    %73 = stablehlo.multiply %72, %72 : tensor<64x32x64xf32>
    %74 = stablehlo.reduce(%73 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<64x32x64xf32>, tensor<f32>) -> tensor<64x32xf32>
    %75 = stablehlo.reshape %74 : (tensor<64x32xf32>) -> tensor<64x32x1xf32>
    %76 = stablehlo.divide %75, %5 : tensor<64x32x1xf32>
    %77 = stablehlo.add %76, %13 : tensor<64x32x1xf32>
    %78 = stablehlo.rsqrt %77 : tensor<64x32x1xf32>
    %79 = stablehlo.broadcast_in_dim %78, dims = [0, 1, 2] : (tensor<64x32x1xf32>) -> tensor<64x32x64xf32>
    %80 = stablehlo.multiply %72, %79 : tensor<64x32x64xf32>
    %81 = stablehlo.broadcast_in_dim %arg6, dims = [2] : (tensor<64xf32>) -> tensor<64x32x64xf32>
    %82 = stablehlo.multiply %80, %81 : tensor<64x32x64xf32>
    %83 = stablehlo.broadcast_in_dim %arg7, dims = [2] : (tensor<64xf32>) -> tensor<64x32x64xf32>
    %84 = stablehlo.add %82, %83 : tensor<64x32x64xf32>
    %85 = stablehlo.reshape %84 : (tensor<64x32x64xf32>) -> tensor<2048x64xf32>
    %86 = stablehlo.transpose %arg8, dims = [1, 0] : (tensor<256x64xf32>) -> tensor<64x256xf32>
    %87 = stablehlo.dot_general %85, %86, contracting_dims = [1] x [0] : (tensor<2048x64xf32>, tensor<64x256xf32>) -> tensor<2048x256xf32>
    %cst_8 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %88 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<2048x256xf32>
    %89 = stablehlo.multiply %87, %88 : tensor<2048x256xf32>
    %90 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<256xf32>
    %91 = stablehlo.multiply %arg9, %90 : tensor<256xf32>
    %92 = stablehlo.broadcast_in_dim %91, dims = [1] : (tensor<256xf32>) -> tensor<2048x256xf32>
    %93 = stablehlo.add %89, %92 : tensor<2048x256xf32>
    %94 = stablehlo.reshape %93 : (tensor<2048x256xf32>) -> tensor<64x32x256xf32>
    %95 = stablehlo.maximum %94, %cst_3 : tensor<64x32x256xf32>
    %96 = stablehlo.reshape %95 : (tensor<64x32x256xf32>) -> tensor<2048x256xf32>
    %97 = stablehlo.transpose %arg10, dims = [1, 0] : (tensor<64x256xf32>) -> tensor<256x64xf32>
    %98 = stablehlo.dot_general %96, %97, contracting_dims = [1] x [0] : (tensor<2048x256xf32>, tensor<256x64xf32>) -> tensor<2048x64xf32>
    %99 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<2048x64xf32>
    %100 = stablehlo.multiply %98, %99 : tensor<2048x64xf32>
    %101 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %102 = stablehlo.multiply %arg11, %101 : tensor<64xf32>
    %103 = stablehlo.broadcast_in_dim %102, dims = [1] : (tensor<64xf32>) -> tensor<2048x64xf32>
    %104 = stablehlo.add %100, %103 : tensor<2048x64xf32>
    %105 = stablehlo.reshape %104 : (tensor<2048x64xf32>) -> tensor<64x32x64xf32>
    %106 = stablehlo.add %67, %105 : tensor<64x32x64xf32>
    %107 = stablehlo.reduce(%106 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<64x32x64xf32>, tensor<f32>) -> tensor<64x32xf32>
    %108 = stablehlo.reshape %107 : (tensor<64x32xf32>) -> tensor<64x32x1xf32>
    %109 = stablehlo.divide %108, %5 : tensor<64x32x1xf32>
    %110 = stablehlo.broadcast_in_dim %109, dims = [0, 1, 2] : (tensor<64x32x1xf32>) -> tensor<64x32x64xf32>
    %111 = stablehlo.subtract %106, %110 : tensor<64x32x64xf32>
    %112 = stablehlo.multiply %111, %111 : tensor<64x32x64xf32>
    %113 = stablehlo.reduce(%112 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<64x32x64xf32>, tensor<f32>) -> tensor<64x32xf32>
    %114 = stablehlo.reshape %113 : (tensor<64x32xf32>) -> tensor<64x32x1xf32>
    %115 = stablehlo.divide %114, %5 : tensor<64x32x1xf32>
    %116 = stablehlo.add %115, %13 : tensor<64x32x1xf32>
    %117 = stablehlo.rsqrt %116 : tensor<64x32x1xf32>
    %118 = stablehlo.broadcast_in_dim %117, dims = [0, 1, 2] : (tensor<64x32x1xf32>) -> tensor<64x32x64xf32>
    %119 = stablehlo.multiply %111, %118 : tensor<64x32x64xf32>
    %120 = stablehlo.broadcast_in_dim %arg12, dims = [2] : (tensor<64xf32>) -> tensor<64x32x64xf32>
    %121 = stablehlo.multiply %119, %120 : tensor<64x32x64xf32>
    %122 = stablehlo.broadcast_in_dim %arg13, dims = [2] : (tensor<64xf32>) -> tensor<64x32x64xf32>
    %123 = stablehlo.add %121, %122 : tensor<64x32x64xf32>
    %124 = stablehlo.transpose %arg14, dims = [1, 0] : (tensor<192x64xf32>) -> tensor<64x192xf32>
    %125 = stablehlo.reshape %123 : (tensor<64x32x64xf32>) -> tensor<2048x64xf32>
    %126 = stablehlo.dot_general %125, %124, contracting_dims = [1] x [0] : (tensor<2048x64xf32>, tensor<64x192xf32>) -> tensor<2048x192xf32>
    %127 = stablehlo.reshape %126 : (tensor<2048x192xf32>) -> tensor<64x32x192xf32>
    %128 = stablehlo.slice %127 [0:64, 0:32, 0:64] : (tensor<64x32x192xf32>) -> tensor<64x32x64xf32>
    %129 = stablehlo.slice %127 [0:64, 0:32, 64:128] : (tensor<64x32x192xf32>) -> tensor<64x32x64xf32>
    %130 = stablehlo.slice %127 [0:64, 0:32, 128:192] : (tensor<64x32x192xf32>) -> tensor<64x32x64xf32>
    %131 = stablehlo.reshape %128 : (tensor<64x32x64xf32>) -> tensor<64x32x4x16xf32>
    %132 = stablehlo.transpose %131, dims = [0, 2, 1, 3] : (tensor<64x32x4x16xf32>) -> tensor<64x4x32x16xf32>
    %133 = stablehlo.reshape %129 : (tensor<64x32x64xf32>) -> tensor<64x32x4x16xf32>
    %134 = stablehlo.transpose %133, dims = [0, 2, 1, 3] : (tensor<64x32x4x16xf32>) -> tensor<64x4x32x16xf32>
    %135 = stablehlo.reshape %130 : (tensor<64x32x64xf32>) -> tensor<64x32x4x16xf32>
    %136 = stablehlo.transpose %135, dims = [0, 2, 1, 3] : (tensor<64x32x4x16xf32>) -> tensor<64x4x32x16xf32>
    %137 = stablehlo.transpose %134, dims = [0, 1, 3, 2] : (tensor<64x4x32x16xf32>) -> tensor<64x4x16x32xf32>
    %138 = stablehlo.reshape %132 : (tensor<64x4x32x16xf32>) -> tensor<256x32x16xf32>
    %139 = stablehlo.reshape %137 : (tensor<64x4x16x32xf32>) -> tensor<256x16x32xf32>
    %140 = stablehlo.broadcast_in_dim %139, dims = [0, 1, 2] : (tensor<256x16x32xf32>) -> tensor<256x16x32xf32>
    %141 = stablehlo.dot_general %138, %140, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<256x32x16xf32>, tensor<256x16x32xf32>) -> tensor<256x32x32xf32>
    %142 = stablehlo.reshape %141 : (tensor<256x32x32xf32>) -> tensor<64x4x32x32xf32>
    %143 = stablehlo.divide %142, %41 : tensor<64x4x32x32xf32>
    %144 = stablehlo.broadcast_in_dim %143, dims = [0, 1, 2, 3] : (tensor<64x4x32x32xf32>) -> tensor<64x4x32x32xf32>
    %145 = stablehlo.select %43, %44, %144 : tensor<64x4x32x32xi1>, tensor<64x4x32x32xf32>
    %146 = stablehlo.reduce(%145 init: %cst_2) applies stablehlo.maximum across dimensions = [3] : (tensor<64x4x32x32xf32>, tensor<f32>) -> tensor<64x4x32xf32>
    %147 = stablehlo.reshape %146 : (tensor<64x4x32xf32>) -> tensor<64x4x32x1xf32>
    %148 = stablehlo.broadcast_in_dim %147, dims = [0, 1, 2, 3] : (tensor<64x4x32x1xf32>) -> tensor<64x4x32x32xf32>
    %149 = stablehlo.subtract %145, %148 : tensor<64x4x32x32xf32>
    %150 = stablehlo.exponential %149 : tensor<64x4x32x32xf32>
    %151 = stablehlo.reduce(%150 init: %cst) applies stablehlo.add across dimensions = [3] : (tensor<64x4x32x32xf32>, tensor<f32>) -> tensor<64x4x32xf32>
    %152 = stablehlo.reshape %151 : (tensor<64x4x32xf32>) -> tensor<64x4x32x1xf32>
    %153 = stablehlo.broadcast_in_dim %152, dims = [0, 1, 2, 3] : (tensor<64x4x32x1xf32>) -> tensor<64x4x32x32xf32>
    %154 = stablehlo.divide %150, %153 : tensor<64x4x32x32xf32>
    %155 = stablehlo.reshape %154 : (tensor<64x4x32x32xf32>) -> tensor<256x32x32xf32>
    %156 = stablehlo.reshape %136 : (tensor<64x4x32x16xf32>) -> tensor<256x32x16xf32>
    %157 = stablehlo.broadcast_in_dim %156, dims = [0, 1, 2] : (tensor<256x32x16xf32>) -> tensor<256x32x16xf32>
    %158 = stablehlo.dot_general %155, %157, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<256x32x32xf32>, tensor<256x32x16xf32>) -> tensor<256x32x16xf32>
    %159 = stablehlo.reshape %158 : (tensor<256x32x16xf32>) -> tensor<64x4x32x16xf32>
    %160 = stablehlo.transpose %159, dims = [0, 2, 1, 3] : (tensor<64x4x32x16xf32>) -> tensor<64x32x4x16xf32>
    %161 = stablehlo.reshape %160 : (tensor<64x32x4x16xf32>) -> tensor<64x32x64xf32>
    %162 = stablehlo.transpose %arg15, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
    %163 = stablehlo.reshape %161 : (tensor<64x32x64xf32>) -> tensor<2048x64xf32>
    %164 = stablehlo.dot_general %163, %162, contracting_dims = [1] x [0] : (tensor<2048x64xf32>, tensor<64x64xf32>) -> tensor<2048x64xf32>
    %165 = stablehlo.reshape %164 : (tensor<2048x64xf32>) -> tensor<64x32x64xf32>
    %166 = stablehlo.add %106, %165 : tensor<64x32x64xf32>
    %167 = stablehlo.reduce(%166 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<64x32x64xf32>, tensor<f32>) -> tensor<64x32xf32>
    %168 = stablehlo.reshape %167 : (tensor<64x32xf32>) -> tensor<64x32x1xf32>
    %169 = stablehlo.divide %168, %5 : tensor<64x32x1xf32>
    %170 = stablehlo.broadcast_in_dim %169, dims = [0, 1, 2] : (tensor<64x32x1xf32>) -> tensor<64x32x64xf32>
    %171 = stablehlo.subtract %166, %170 : tensor<64x32x64xf32>
    %172 = stablehlo.multiply %171, %171 : tensor<64x32x64xf32>
    %173 = stablehlo.reduce(%172 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<64x32x64xf32>, tensor<f32>) -> tensor<64x32xf32>
    %174 = stablehlo.reshape %173 : (tensor<64x32xf32>) -> tensor<64x32x1xf32>
    %175 = stablehlo.divide %174, %5 : tensor<64x32x1xf32>
    %176 = stablehlo.add %175, %13 : tensor<64x32x1xf32>
    %177 = stablehlo.rsqrt %176 : tensor<64x32x1xf32>
    %178 = stablehlo.broadcast_in_dim %177, dims = [0, 1, 2] : (tensor<64x32x1xf32>) -> tensor<64x32x64xf32>
    %179 = stablehlo.multiply %171, %178 : tensor<64x32x64xf32>
    %180 = stablehlo.broadcast_in_dim %arg16, dims = [2] : (tensor<64xf32>) -> tensor<64x32x64xf32>
    %181 = stablehlo.multiply %179, %180 : tensor<64x32x64xf32>
    %182 = stablehlo.broadcast_in_dim %arg17, dims = [2] : (tensor<64xf32>) -> tensor<64x32x64xf32>
    %183 = stablehlo.add %181, %182 : tensor<64x32x64xf32>
    %184 = stablehlo.reshape %183 : (tensor<64x32x64xf32>) -> tensor<2048x64xf32>
    %185 = stablehlo.transpose %arg18, dims = [1, 0] : (tensor<256x64xf32>) -> tensor<64x256xf32>
    %186 = stablehlo.dot_general %184, %185, contracting_dims = [1] x [0] : (tensor<2048x64xf32>, tensor<64x256xf32>) -> tensor<2048x256xf32>
    %187 = stablehlo.multiply %186, %88 : tensor<2048x256xf32>
    %188 = stablehlo.multiply %arg19, %90 : tensor<256xf32>
    %189 = stablehlo.broadcast_in_dim %188, dims = [1] : (tensor<256xf32>) -> tensor<2048x256xf32>
    %190 = stablehlo.add %187, %189 : tensor<2048x256xf32>
    %191 = stablehlo.reshape %190 : (tensor<2048x256xf32>) -> tensor<64x32x256xf32>
    %192 = stablehlo.maximum %191, %cst_3 : tensor<64x32x256xf32>
    %193 = stablehlo.reshape %192 : (tensor<64x32x256xf32>) -> tensor<2048x256xf32>
    %194 = stablehlo.transpose %arg20, dims = [1, 0] : (tensor<64x256xf32>) -> tensor<256x64xf32>
    %195 = stablehlo.dot_general %193, %194, contracting_dims = [1] x [0] : (tensor<2048x256xf32>, tensor<256x64xf32>) -> tensor<2048x64xf32>
    %196 = stablehlo.multiply %195, %99 : tensor<2048x64xf32>
    %197 = stablehlo.multiply %arg21, %101 : tensor<64xf32>
    %198 = stablehlo.broadcast_in_dim %197, dims = [1] : (tensor<64xf32>) -> tensor<2048x64xf32>
    %199 = stablehlo.add %196, %198 : tensor<2048x64xf32>
    %200 = stablehlo.reshape %199 : (tensor<2048x64xf32>) -> tensor<64x32x64xf32>
    %201 = stablehlo.add %166, %200 : tensor<64x32x64xf32>
    %202 = stablehlo.reduce(%201 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<64x32x64xf32>, tensor<f32>) -> tensor<64x32xf32>
    %203 = stablehlo.reshape %202 : (tensor<64x32xf32>) -> tensor<64x32x1xf32>
    %204 = stablehlo.divide %203, %5 : tensor<64x32x1xf32>
    %205 = stablehlo.broadcast_in_dim %204, dims = [0, 1, 2] : (tensor<64x32x1xf32>) -> tensor<64x32x64xf32>
    %206 = stablehlo.subtract %201, %205 : tensor<64x32x64xf32>
    %207 = stablehlo.multiply %206, %206 : tensor<64x32x64xf32>
    %208 = stablehlo.reduce(%207 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<64x32x64xf32>, tensor<f32>) -> tensor<64x32xf32>
    %209 = stablehlo.reshape %208 : (tensor<64x32xf32>) -> tensor<64x32x1xf32>
    %210 = stablehlo.divide %209, %5 : tensor<64x32x1xf32>
    %211 = stablehlo.add %210, %13 : tensor<64x32x1xf32>
    %212 = stablehlo.rsqrt %211 : tensor<64x32x1xf32>
    %213 = stablehlo.broadcast_in_dim %212, dims = [0, 1, 2] : (tensor<64x32x1xf32>) -> tensor<64x32x64xf32>
    %214 = stablehlo.multiply %206, %213 : tensor<64x32x64xf32>
    %215 = stablehlo.broadcast_in_dim %arg22, dims = [2] : (tensor<64xf32>) -> tensor<64x32x64xf32>
    %216 = stablehlo.multiply %214, %215 : tensor<64x32x64xf32>
    %217 = stablehlo.broadcast_in_dim %arg23, dims = [2] : (tensor<64xf32>) -> tensor<64x32x64xf32>
    %218 = stablehlo.add %216, %217 : tensor<64x32x64xf32>
    %219 = stablehlo.transpose %arg24, dims = [1, 0] : (tensor<256x64xf32>) -> tensor<64x256xf32>
    %220 = stablehlo.reshape %218 : (tensor<64x32x64xf32>) -> tensor<2048x64xf32>
    %221 = stablehlo.dot_general %220, %219, contracting_dims = [1] x [0] : (tensor<2048x64xf32>, tensor<64x256xf32>) -> tensor<2048x256xf32>
    %222 = stablehlo.reshape %221 : (tensor<2048x256xf32>) -> tensor<64x32x256xf32>
    %223 = stablehlo.reshape %222 : (tensor<64x32x256xf32>) -> tensor<2048x256xf32>
    %224 = stablehlo.reshape %arg26 : (tensor<64x32xi64>) -> tensor<2048xi64>
    %225 = stablehlo.reduce(%223 init: %cst_2) applies stablehlo.maximum across dimensions = [1] : (tensor<2048x256xf32>, tensor<f32>) -> tensor<2048xf32>
    %226 = stablehlo.reshape %225 : (tensor<2048xf32>) -> tensor<2048x1xf32>
    %227 = stablehlo.broadcast_in_dim %226, dims = [0, 1] : (tensor<2048x1xf32>) -> tensor<2048x256xf32>
    %228 = stablehlo.subtract %223, %227 : tensor<2048x256xf32>
    %229 = stablehlo.exponential %228 : tensor<2048x256xf32>
    %230 = stablehlo.reduce(%229 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<2048x256xf32>, tensor<f32>) -> tensor<2048xf32>
    %231 = stablehlo.reshape %230 : (tensor<2048xf32>) -> tensor<2048x1xf32>
    %232 = stablehlo.log %231 : tensor<2048x1xf32>
    %233 = stablehlo.broadcast_in_dim %232, dims = [0, 1] : (tensor<2048x1xf32>) -> tensor<2048x256xf32>
    %234 = stablehlo.subtract %228, %233 : tensor<2048x256xf32>
    %235 = stablehlo.compare NE, %224, %c_0, SIGNED : (tensor<2048xi64>, tensor<2048xi64>) -> tensor<2048xi1>
    %236 = stablehlo.broadcast_in_dim %235, dims = [0] : (tensor<2048xi1>) -> tensor<2048xi1>
    %237 = stablehlo.broadcast_in_dim %224, dims = [0] : (tensor<2048xi64>) -> tensor<2048xi64>
    %238 = stablehlo.select %236, %237, %c : tensor<2048xi1>, tensor<2048xi64>
    %239 = stablehlo.reshape %238 : (tensor<2048xi64>) -> tensor<2048x1xi64>
    %240 = stablehlo.iota dim = 0 : tensor<2048x1x1xi64>
    %241 = stablehlo.reshape %239 : (tensor<2048x1xi64>) -> tensor<2048x1x1xi64>
    %242 = stablehlo.concatenate %240, %241, dim = 2 : (tensor<2048x1x1xi64>, tensor<2048x1x1xi64>) -> tensor<2048x1x2xi64>
    %243 = "stablehlo.gather"(%234, %242) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1>}> : (tensor<2048x256xf32>, tensor<2048x1x2xi64>) -> tensor<2048x1xf32>
    %244 = stablehlo.reshape %243 : (tensor<2048x1xf32>) -> tensor<2048xf32>
    %245 = stablehlo.negate %244 : tensor<2048xf32>
    %246 = stablehlo.broadcast_in_dim %245, dims = [0] : (tensor<2048xf32>) -> tensor<2048xf32>
    %247 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2048xf32>
    %248 = stablehlo.select %236, %246, %247 : tensor<2048xi1>, tensor<2048xf32>
    %249 = stablehlo.convert %235 : (tensor<2048xi1>) -> tensor<2048xi64>
    %250 = stablehlo.reduce(%249 init: %c_1) applies stablehlo.add across dimensions = [0] : (tensor<2048xi64>, tensor<i64>) -> tensor<i64>
    %251 = stablehlo.convert %250 : (tensor<i64>) -> tensor<f32>
    %252 = stablehlo.reduce(%248 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<2048xf32>, tensor<f32>) -> tensor<f32>
    %253 = stablehlo.divide %252, %251 : tensor<f32>
    return %253 : tensor<f32>
  }
}
